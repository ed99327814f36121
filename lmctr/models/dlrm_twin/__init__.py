"""DLRMTwin: the DLRM that Climber (arXiv 2502.09888) compares with."""
