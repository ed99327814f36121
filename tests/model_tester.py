"""The test suite that every model family passes; a family's test class inherits it and says how to build a tiny model."""

import copy
import math

import accelerate
import pytest
import torch
from packaging.version import Version
from peft import LoraConfig, get_peft_model
from pretended_device import pretended
from transformers import AutoConfig, AutoModel

import lmctr
from lmctr.models.common.table_bank import TableBank

ROW_TOLERANCE = 1e-5


def aligned(model):
    """The model with its weights copied to fresh memory: where a file's bytes lie decides the last bit of some CPUs' matrix products."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model


def adapted_to_all_linear(model):
    """The model by PEFT with adapters around all its linear layers, none of which is zero; None where it has no such layer."""
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    if not names:
        return None
    found = get_peft_model(model, LoraConfig(r=2, target_modules=names)).eval()
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    return found


class CTRModelTesterMixin:
    """Subclasses give `make_config(**values)` and `make_batch(config, seed)` (a dict of tensors with `labels`)."""

    config_class: type
    model_class: type
    base_class: type
    read_by_head = ("labels", "ecpm")  # and not by the base model
    has_float64 = True  # whether all of a float64 model's layers compute in it
    offloads = True  # whether accelerate may bring its weights layer by layer
    bounds = {}  # config values that keep a pass on an accelerator from waiting for the host
    host_reads = 0  # how often it waits all the same, in this package's code
    changing_key = ("head_hidden_size", 8)  # a config key and a value of it that is no default

    def make_config(self, **values):
        raise AssertionError("a family's test class must say how to build its tiny config")

    def make_batch(self, config, seed=0):
        raise AssertionError("a family's test class must say how to build a batch")

    def make_model(self, **values):
        torch.manual_seed(0)
        return self.model_class(self.make_config(**values)).eval()

    def logits(self, model, batch):
        with torch.no_grad():
            return model(**{k: v for k, v in batch.items() if k != "labels"}).logits

    def test_output_contract(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        output = model(**batch)
        assert isinstance(output, lmctr.CTROutput)
        assert output.logits.shape == batch["labels"].shape
        assert output.logits.dtype == torch.float32
        assert not output.logits._is_view()  # FSDP2 warns of outputs that are
        reference = torch.nn.functional.binary_cross_entropy_with_logits(
            output.logits.double(), batch["labels"].double()
        )
        torch.testing.assert_close(output.loss.double(), reference, atol=1e-6, rtol=1e-6)

    def test_a_tuple_where_asked(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        loss, logits = model(**batch, return_dict=False)[:2]
        torch.testing.assert_close(model(**batch, return_dict=None).logits, logits)
        torch.testing.assert_close(model(**batch).loss, loss)

    def test_what_is_no_weight_is_refused(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        for value in (-1.0, float("nan")):
            with pytest.raises(ValueError, match=f"sample_weight: {value:g} is no weight; accepted: 0 and above"):
                model(**batch, sample_weight=torch.full((len(batch["labels"]),), value))

    def test_ignored_rows_and_weights_in_the_loss(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        logits = self.logits(model, batch)
        labels = batch["labels"].clone()
        labels[0] = -100
        weight = torch.linspace(0.5, 2.0, len(labels))
        losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.clamp_min(0), reduction="none")
        expected = (losses * weight)[1:].sum() / weight[1:].sum()
        found = model(**{**batch, "labels": labels}, sample_weight=weight).loss
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("value", [2.0, -1.0, 0.5, float("nan")])
    def test_what_is_no_label_is_refused(self, value):
        model = self.make_model()
        batch = self.make_batch(model.config)
        labels = batch["labels"].float()
        labels.view(-1)[-1] = value
        with pytest.raises(ValueError, match=rf"labels: {value:g} at \[.*\] is no label; accepted: 0 or 1, and -100"):
            model(**{**batch, "labels": labels})

    def test_soft_labels_are_a_choice(self):
        model = self.make_model(soft_labels=True)
        batch = self.make_batch(model.config)
        labels = torch.linspace(0, 1, batch["labels"].numel()).view(batch["labels"].shape)
        output = model(**{**batch, "labels": labels})
        expected = torch.nn.functional.binary_cross_entropy_with_logits(output.logits.double(), labels.double())
        torch.testing.assert_close(output.loss.double(), expected, atol=1e-6, rtol=1e-6)
        with pytest.raises(ValueError, match=r"labels: 1\.5 at .* accepted: 0 to 1, and -100"):
            model(**{**batch, "labels": labels.clamp(max=0.9).masked_fill(labels == 1, 1.5)})

    def test_what_calibrates_moves_the_logits_alone(self):
        plain = self.make_model()
        batch = self.make_batch(plain.config)
        moved = self.make_model(calibration=[0.75])
        moved.load_state_dict(plain.state_dict())
        torch.testing.assert_close(self.logits(moved, batch), self.logits(plain, batch) + 0.75)
        for added in ([0.75, 0.5, 0.25, 0.0], [float("nan")], []):
            with pytest.raises(ValueError, match=r"calibration=.* use None, or a finite number for each task"):
                self.make_config(calibration=added)

    def test_round_trip_through_auto_classes(self, tmp_path):
        key, value = self.changing_key
        model = self.make_model(**{key: value})
        batch = self.make_batch(model.config)
        model.save_pretrained(tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
        expected = self.logits(model, batch)
        config = AutoConfig.from_pretrained(tmp_path)
        assert isinstance(config, self.config_class)
        assert getattr(config, key) == value
        for loader in (self.model_class, lmctr.AutoModelForCTR):
            loaded = loader.from_pretrained(tmp_path).eval()
            assert type(loaded) is self.model_class
            weights = loaded.state_dict()
            assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
            assert torch.equal(self.logits(aligned(loaded), batch), expected)
        base, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
        assert isinstance(base, self.base_class)
        assert not info["missing_keys"]
        for loader in (self.model_class, lmctr.AutoModelForCTR):
            message = f"^unknown key '{key}x' in {self.model_class.__name__}.from_pretrained; accepted: .* did you mean '{key}'"
            with pytest.raises(ValueError, match=message):
                loader.from_pretrained(tmp_path, **{f"{key}x": value})

    def test_same_seed_same_model(self):
        first, second = self.make_model(), self.make_model()
        for (name, one), (_, two) in zip(first.named_parameters(), second.named_parameters(), strict=True):
            assert torch.equal(one, two), name
        batch = self.make_batch(first.config)
        assert torch.equal(self.logits(first, batch), self.logits(second, batch))
        assert torch.equal(self.logits(first, batch), self.logits(first, batch))

    def test_a_copy_is_independent(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        expected = self.logits(model, batch)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        assert torch.equal(self.logits(twin, batch), expected)

    def test_a_row_does_not_depend_on_its_batch(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        together = self.logits(model, batch)
        for row in range(len(together)):
            alone = self.logits(model, {k: v[row : row + 1] for k, v in batch.items()})
            torch.testing.assert_close(alone[0], together[row], atol=ROW_TOLERANCE, rtol=0)

    def test_ids_of_32_bits_and_the_table_they_are_looked_up_in(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        narrow = {name: v.int() if v.dtype == torch.int64 and "time" not in name else v for name, v in batch.items()}
        torch.testing.assert_close(self.logits(model, narrow), self.logits(model, batch), atol=1e-6, rtol=0)
        assert model.main_input_name in batch
        table = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
        assert table
        assert table <= {id(parameter) for parameter in model.parameters()}

    def test_adapters_around_linear_layers_act_as_they_do_when_they_are_merged(self):
        """By hand, with PEFT alone: of every linear layer, in every place that reads it."""
        model = self.make_model()
        batch = self.make_batch(model.config)
        plain = self.logits(model, batch)
        found = adapted_to_all_linear(model)
        if found is None:
            pytest.skip("the model has no linear layer")
        with_adapters = self.logits(found, batch)
        assert (with_adapters - plain).abs().max() > 1e-4
        with found.disable_adapter():
            torch.testing.assert_close(self.logits(found, batch), plain, atol=2e-5, rtol=1e-4)
        found(**{name: values for name, values in batch.items() if name != "labels"}).logits.sum().backward()
        still = [n for n, p in found.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
        assert still == []
        torch.testing.assert_close(self.logits(found.merge_and_unload(), batch), with_adapters, atol=1e-4, rtol=1e-4)

    def test_weights_that_come_layer_by_layer_give_the_same_logits_or_an_error(self, tmp_path):
        model = self.make_model()
        batch = self.make_batch(model.config)
        expected = self.logits(model, batch)
        model.save_pretrained(tmp_path)
        if Version(accelerate.__version__) < Version("1.15"):  # which refuses to place all on disk
            whole = self.model_class.from_pretrained(tmp_path)
            offloaded = accelerate.disk_offload(whole, str(tmp_path / "offloaded")).eval()
        else:
            placed = {"device_map": {"": "disk"}, "offload_folder": tmp_path / "offloaded"}
            offloaded = self.model_class.from_pretrained(tmp_path, **placed).eval()
        assert all(parameter.is_meta for parameter in offloaded.parameters())
        if self.offloads:
            torch.testing.assert_close(self.logits(offloaded, batch), expected, atol=1e-6, rtol=0)
        else:
            with pytest.raises((NotImplementedError, RuntimeError), match=r"meta|offload"):
                self.logits(offloaded, batch)

    def test_every_parameter_gets_a_gradient(self):
        model = self.make_model().train()
        model(**self.make_batch(model.config)).loss.backward()
        without = [n for n, p in model.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
        assert without == []

    def test_tables_are_read_by_their_bank_alone(self, monkeypatch):
        model = self.make_model()
        batch = self.make_batch(model.config)
        expected = self.logits(model, batch)
        kept = {}
        for name, module in model.named_modules():
            if isinstance(module, TableBank):
                kept[module] = module.weight
                module.weight = torch.nn.Parameter(module.weight[:0])  # who reads a row past the bank finds none
            elif isinstance(module, torch.nn.Embedding):
                assert not {"table", "items", "features", "user_features"} & set(name.split("."))
        assert bool(kept) != hasattr(model.config, "text_config")
        monkeypatch.setattr(
            TableBank, "_look_up", lambda bank, rows, padding: torch.nn.functional.embedding(rows, kept[bank])
        )
        torch.testing.assert_close(self.logits(model, batch), expected, atol=0, rtol=0)

    def test_overfits_one_batch(self):
        model = self.make_model().train()
        batch = self.make_batch(model.config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(100):
            loss = model(**batch).loss
            if loss.item() < 0.02:  # well below what is asked for
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.05

    @pytest.mark.parametrize("autocast", [False, True], ids=["bf16 weights", "bf16 autocast"])
    def test_bf16_is_finite(self, autocast):
        model = self.make_model().train()
        batch = self.make_batch(model.config)
        if autocast:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(**batch)
        else:
            output = model.to(torch.bfloat16)(**batch)
        output.loss.backward()
        assert math.isfinite(output.loss.item())
        assert output.logits.dtype == torch.float32
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_scores_in_half_precision(self, dtype):
        model = self.make_model()
        batch = self.make_batch(model.config)
        expected = self.logits(model, batch)
        found = self.logits(copy.deepcopy(model).to(dtype), batch)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
        assert not torch.equal(found, expected)

    def test_meta_device_init(self, tmp_path):
        """Weights that a checkpoint lacks are initialised, not left as they come from the meta device."""
        torch.manual_seed(0)
        with torch.device("meta"):
            model = self.model_class(self.make_config())
        assert all(p.device.type == "meta" for p in model.parameters())
        whole = self.make_model()
        whole.model.save_pretrained(tmp_path)
        torch.manual_seed(3)
        loaded, info = self.model_class.from_pretrained(tmp_path, output_loading_info=True)
        assert info["missing_keys"]
        assert all(p.device.type == "cpu" and torch.isfinite(p).all() for p in loaded.parameters())
        reference = dict(whole.named_parameters())
        for name in info["missing_keys"]:
            found, fresh = dict(loaded.named_parameters())[name], reference[name]
            assert found.std(correction=0) <= 3 * fresh.std(correction=0) + 1e-6, name

    def test_a_pass_without_values(self):
        """On the meta device, as accelerate's `init_empty_weights` has a model: the shapes of a pass."""
        model = self.make_model()
        batch = self.make_batch(model.config)
        expected = model(**batch)
        with torch.device("meta"):
            empty = type(model)(model.config)
        for mode in (True, False):
            found = empty.train(mode)(**{name: values.to("meta") for name, values in batch.items()})
            assert found.logits.shape == expected.logits.shape
            assert found.loss.shape == expected.loss.shape

    def test_activation_checkpointing_gives_the_same_gradients(self):
        plain, checkpointed = self.make_model().train(), self.make_model().train()
        checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        checkpointed = copy.deepcopy(checkpointed)
        assert checkpointed.is_gradient_checkpointing
        batch = self.make_batch(plain.config)
        for model in (plain, checkpointed):
            torch.manual_seed(7)
            model(**batch).loss.backward()
        for (name, one), (_, two) in zip(plain.named_parameters(), checkpointed.named_parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, atol=1e-6, rtol=1e-4, msg=name)
        # The recomputation moves no running statistics.
        for (name, one), (_, two) in zip(plain.named_buffers(), checkpointed.named_buffers(), strict=True):
            assert torch.equal(one, two), name

    def test_a_float64_model_computes_in_float64(self):
        """Its gradient is the slope between two points that are closer than float32 could tell."""
        if not self.has_float64:
            pytest.skip("the backbone has layers in float32, or masks a gradient")
        base = self.make_model().double().model
        batch = {name: value for name, value in self.make_batch(base.config).items() if name not in self.read_by_head}
        batch = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
        torch.manual_seed(3)
        weights = list(base.parameters())
        directions = [torch.randn_like(weight) for weight in weights]
        of_outputs = []

        def value(step):
            with torch.no_grad():
                torch._foreach_add_(weights, directions, alpha=step)
            outputs = base(**batch).to_tuple()
            assert outputs[0].dtype == torch.float64
            outputs = [one for one in outputs if torch.is_tensor(one) and one.dtype == torch.float64]
            of_outputs.extend(torch.randn_like(one) for one in outputs[len(of_outputs) :])
            return sum((one * factor).sum() for one, factor in zip(outputs, of_outputs, strict=True))

        with torch.no_grad():  # away from corners
            torch._foreach_add_(weights, [0.05 * torch.randn_like(weight) for weight in weights])
        gradients = torch.autograd.grad(value(0), weights, allow_unused=True)
        expected = sum((one * direction).sum() for one, direction in zip(gradients, directions) if one is not None)
        with torch.no_grad():
            slope = (value(1e-6) - value(-2e-6)) / 2e-6
        torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-7)

    def test_a_misspelt_input_is_no_input(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        with pytest.raises(TypeError, match="got an unexpected keyword argument 'sample_weights'"):
            model(**batch, sample_weights=torch.ones(len(batch["labels"])))

    def test_what_is_no_tensor_is_refused(self):
        model = self.make_model()
        batch = self.make_batch(model.config)
        inputs = {name: value for name, value in batch.items() if name not in self.read_by_head}
        for part, given in ((model, batch), (model.model, inputs)):
            for name, value in given.items():
                for wrong in (value.numpy(), value.tolist(), "abc"):
                    message = rf"^{name}: expected a torch.Tensor, got {type(wrong).__name__} "
                    with pytest.raises(ValueError, match=message):
                        part(**{**given, name: wrong})

    def test_a_batch_of_no_rows_is_refused(self):
        model = self.make_model()
        batch = {name: value[:0] for name, value in self.make_batch(model.config).items()}
        with pytest.raises(ValueError, match=r": shape \(0.*\) holds no row; give at least one"):
            model(**batch)

    def test_unknown_config_key(self):
        key, value = self.changing_key
        with pytest.raises(ValueError, match=key):
            self.make_config(**{key + "x": value})

    def test_keys_given_on_loading_are_checked(self, tmp_path):
        key, value = self.changing_key
        self.make_config().save_pretrained(tmp_path)
        for load in (AutoConfig.from_pretrained, self.config_class.from_pretrained):
            assert getattr(load(tmp_path, **{key: value}), key) == value
            with pytest.raises(ValueError, match=f"{self.config_class.__name__}: {key} must be"):
                load(tmp_path, **{key: {"a": object()}})
            with pytest.raises(ValueError, match=r"return_dict=False is not accepted; use True; forward\("):
                load(tmp_path, return_dict=False)

    def test_what_could_not_be_read_again_is_not_saved(self, tmp_path):
        model = self.make_model()
        model.config.no_such_key = 1
        with pytest.raises(ValueError, match="unknown key 'no_such_key'"):
            model.save_pretrained(tmp_path)
        assert not (tmp_path / "config.json").exists()
        del model.config.no_such_key
        model.save_pretrained(tmp_path)

    def test_the_variant_of_the_weights(self, tmp_path):
        """Also where a key of the configuration is called so."""
        model = self.make_model()
        model.save_pretrained(tmp_path, variant="fp16")
        for loader in (self.model_class, lmctr.AutoModelForCTR):
            loaded = loader.from_pretrained(tmp_path, variant="fp16")
            assert getattr(loaded.config, "variant", None) == getattr(model.config, "variant", None)
            assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())

    def test_on_another_device(self, monkeypatch):
        """Every tensor of a pass and of its gradients is made where the weights are; what waits for the device is known."""
        model = self.make_model(**self.bounds).train()
        batch = self.make_batch(model.config)
        moved = copy.deepcopy(model)
        torch.manual_seed(3)
        expected = model(**batch)
        expected.loss.backward()
        with pretended(monkeypatch) as host_reads:
            moved.to("cuda")
            torch.manual_seed(3)
            found = moved(**{name: values.to("cuda") for name, values in batch.items()})
            assert found.logits.device.type == "cuda"
            assert len(host_reads) == self.host_reads, host_reads
            found.loss.backward()
            gradients = {name: weight.grad for name, weight in moved.named_parameters() if weight.grad is not None}
            torch.testing.assert_close(found.logits.detach().cpu(), expected.logits.detach(), atol=1e-5, rtol=1e-4)
            for name, weight in model.named_parameters():
                if weight.grad is None:
                    assert name not in gradients, name
                else:
                    assert gradients[name].device.type == "cuda", name
                    torch.testing.assert_close(gradients[name].cpu(), weight.grad, atol=1e-5, rtol=1e-3, msg=name)
