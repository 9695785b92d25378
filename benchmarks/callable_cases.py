"""Callables that are not modules: other libraries' pipelines, methods and loops, for ``benchmarks/callables.py``.

Nothing here uses fxflops. Each case is a function that returns a :class:`Call` of the library's own objects. Models are small and
have random weights.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn


class Call(NamedTuple):
    """A call of ``called`` (a function, method or object) with ``args`` and ``kwargs``.

    ``modules`` are the modules that the call uses, by name. ``changes`` are other objects whose state the call changes.
    """

    called: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    modules: Mapping[str, nn.Module] = {}
    changes: tuple[Any, ...] = ()


Make = Callable[[], Call]
CALLS: dict[str, tuple[Make, tuple[str, ...]]] = {}
"""For each name, "library: kind": the function that makes the call, and the distributions that it needs."""


def call(name: str, *needs: str) -> Callable[[Make], Make]:
    def registered(make: Make) -> Make:
        CALLS[name] = make, needs
        return make

    return registered


# diffusers: six kinds of pipelines


def unet2d(**settings: Any) -> Any:
    import diffusers

    return diffusers.UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 32), norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), **settings,
    ).eval()  # fmt: skip


def conditional_unet(size: int = 32) -> Any:
    import diffusers

    return diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=size, attention_head_dim=8,
    ).eval()  # fmt: skip


def vae(channels: int = 4) -> Any:
    import diffusers

    return diffusers.AutoencoderKL(
        in_channels=3, out_channels=3, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, latent_channels=channels,
        shift_factor=0.1,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    ).eval()  # fmt: skip


class Tokenizer:
    """Splits a prompt into characters. Stands in for CLIP's tokenizer, whose vocabulary would have to be downloaded."""

    model_max_length = 16
    added_tokens_encoder: Mapping[str, int] = {}

    def __call__(self, text: Any, **_: Any) -> Any:
        from transformers import BatchEncoding

        rows = [text] if isinstance(text, str) else text
        ids = [[0, *(1 + ord(letter) % 90 for letter in row[:14]), *[99] * (15 - min(len(row), 14))] for row in rows]
        return BatchEncoding(
            {"input_ids": torch.tensor(ids), "attention_mask": torch.ones(len(ids), 16, dtype=torch.long)}
        )

    def tokenize(self, text: str) -> list[str]:
        return [*text]

    def batch_decode(self, ids: torch.Tensor, **_: Any) -> list[str]:
        return ["" for _ in ids]


def clip_text() -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    return CLIPTextModel(
        CLIPTextConfig(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                       max_position_embeddings=16, bos_token_id=0, eos_token_id=99, pad_token_id=99)
    ).eval()  # fmt: skip


def piped(pipe: Any, *args: Any, **kwargs: Any) -> Call:
    pipe.set_progress_bar_config(disable=True)
    modules = {name: each for name, each in pipe.components.items() if isinstance(each, nn.Module)}
    return Call(pipe, args, {"output_type": "pt", **kwargs}, modules, (pipe.scheduler,))


@call("diffusers: unconditional, DDPMPipeline", "diffusers")
def ddpm() -> Call:
    import diffusers

    pipe = diffusers.DDPMPipeline(unet2d(), diffusers.DDPMScheduler())
    return piped(pipe, num_inference_steps=3, output_type="np")


@call("diffusers: text to image, StableDiffusionPipeline", "diffusers", "transformers")
def stable_diffusion() -> Call:
    return piped(_stable("StableDiffusionPipeline"), "a red cube", num_inference_steps=3, height=16, width=16)


@call("diffusers: image to image, StableDiffusionImg2ImgPipeline", "diffusers", "transformers")
def image_to_image() -> Call:
    image = torch.rand(1, 3, 16, 16)
    return piped(_stable("StableDiffusionImg2ImgPipeline"), "a red cube", image=image, num_inference_steps=4)


@call("diffusers: inpainting, StableDiffusionInpaintPipeline", "diffusers", "transformers")
def inpainting() -> Call:
    image, mask = torch.rand(1, 3, 16, 16), (torch.rand(1, 1, 16, 16) > 0.5).float()
    kwargs = {"image": image, "mask_image": mask, "num_inference_steps": 3, "height": 16, "width": 16}
    return piped(_stable("StableDiffusionInpaintPipeline"), "a red cube", **kwargs)


def _stable(name: str) -> Any:
    import diffusers

    return getattr(diffusers, name)(
        vae(), clip_text(), Tokenizer(), conditional_unet(), diffusers.DDIMScheduler(), None, None,
        requires_safety_checker=False,
    )  # fmt: skip


@call("diffusers: class to image by a transformer, DiTPipeline", "diffusers")
def dit() -> Call:
    import diffusers

    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=8, patch_size=2,
        num_embeds_ada_norm=1000, norm_num_groups=8,
    ).eval()  # fmt: skip
    pipe = diffusers.DiTPipeline(transformer, vae(), diffusers.DDIMScheduler())
    return piped(pipe, [1, 2], num_inference_steps=3)


@call("diffusers: flow matching, FluxPipeline", "diffusers", "transformers")
def flux() -> Call:
    import diffusers

    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    ).eval()  # fmt: skip
    pipe = diffusers.FluxPipeline(
        diffusers.FlowMatchEulerDiscreteScheduler(), vae(4), None, None, None, None, transformer
    )
    embeds = {"prompt_embeds": torch.randn(1, 6, 32), "pooled_prompt_embeds": torch.randn(1, 32)}
    return piped(pipe, num_inference_steps=3, height=16, width=16, **embeds)


# transformers: generate, and pipelines


def gpt2(layers: int = 2) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64,
        n_positions=64,
        n_embd=32,
        n_layer=layers,
        n_head=2,
        bos_token_id=0,
        eos_token_id=63,
        pad_token_id=63,
    )
    return GPT2LMHeadModel(config).eval()


def generating(model: nn.Module, inputs: torch.Tensor, **kwargs: Any) -> Call:
    return Call(getattr(model, "generate"), (inputs,), {"max_new_tokens": 6, **kwargs}, {"": model})  # noqa: B009


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(1, 62, shape)


for kind, settings in {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 10},
    "beams": {"num_beams": 3},
    "several samples": {"do_sample": True, "num_return_sequences": 3},
    "prompt lookup": {"prompt_lookup_num_tokens": 2, "do_sample": False},
}.items():
    CALLS[f"transformers: generate, {kind}"] = (
        lambda settings=settings: generating(gpt2(), ids(1, 8), **settings),
        ("transformers",),
    )  # type: ignore[assignment, misc]


@call("transformers: generate, assisted", "transformers")
def assisted() -> Call:
    model, assistant = gpt2(), gpt2(1)
    made = generating(model, ids(1, 8), assistant_model=assistant, do_sample=False)
    return made._replace(modules={"": model, "assistant_model": assistant})


@call("transformers: generate, encoder and decoder (T5)", "transformers")
def t5() -> Call:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    return generating(T5ForConditionalGeneration(config).eval(), ids(2, 8), num_beams=2)


@call("transformers: generate, speech (Whisper)", "transformers")
def whisper() -> Call:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=64, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=20, max_target_positions=32,
        decoder_start_token_id=1, bos_token_id=1, eos_token_id=2, pad_token_id=2, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    return generating(model, torch.randn(1, 16, 40))


@call("transformers: generate, vision (a ViT and GPT-2)", "transformers")
def captioning() -> Call:
    from transformers import GPT2Config, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

    vit = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    text = GPT2Config(
        vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=63, pad_token_id=63
    )
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit, text)
    config.decoder_start_token_id, config.pad_token_id = 0, 63
    model = VisionEncoderDecoderModel(config=config).eval()
    return generating(model, torch.randn(1, 3, 32, 32), decoder_start_token_id=0, pad_token_id=63)


def words() -> Any:
    """Return a tokenizer with a small vocabulary: special tokens and the letters a to z."""
    from tokenizers import Tokenizer as Tokens
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"])}
    tokens = Tokens(WordLevel(vocabulary, unk_token="[UNK]"))
    tokens.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )  # fmt: skip


@call("transformers: TextGenerationPipeline", "transformers")
def text_pipeline() -> Call:
    from transformers import TextGenerationPipeline

    model = gpt2()
    pipe = TextGenerationPipeline(model=model, tokenizer=words(), device="cpu")
    return Call(pipe, ("a b c d",), {"max_new_tokens": 4, "do_sample": False}, {"model": model})


def bert(cls: str, **settings: Any) -> Any:
    import transformers

    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, **settings
    )
    return getattr(transformers, cls)(config).eval()


@call("transformers: TextClassificationPipeline", "transformers")
def classification_pipeline() -> Call:
    from transformers import TextClassificationPipeline

    model = bert("BertForSequenceClassification")
    pipe = TextClassificationPipeline(model=model, tokenizer=words(), device="cpu")
    return Call(pipe, (["a b c d", "e f"],), {}, {"model": model})


@call("transformers: Trainer.training_step", "transformers", "accelerate")
def trainer_step() -> Call:
    from transformers import Trainer, TrainingArguments

    model = gpt2().train()
    arguments = TrainingArguments(tempfile.mkdtemp(), use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(model, arguments)
    trainer.current_gradient_accumulation_steps = 1  # as Trainer.train sets it
    batch = ids(2, 8)
    return Call(trainer.training_step, (model, {"input_ids": batch, "labels": batch}), {}, {"model": model})


# Embeddings, detection, graphs


@call("sentence-transformers: encode", "sentence-transformers")
def sentences() -> Call:
    from sentence_transformers import SentenceTransformer, models

    folder = Path(tempfile.mkdtemp())
    bert("BertModel").save_pretrained(folder)
    words().save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**json.loads((folder / "tokenizer_config.json").read_text()), "model_max_length": 16})
    )
    word = models.Transformer(str(folder))
    model = SentenceTransformer(modules=[word, models.Pooling(32)], device="cpu")
    return Call(model.encode, (["a b c", "d e f g"],), {"show_progress_bar": False}, {"": model})


@call("ultralytics: YOLO.predict", "ultralytics")
def yolo() -> Call:
    from ultralytics import YOLO

    model = YOLO("yolov8n.yaml", verbose=False)
    return Call(model.predict, (torch.rand(1, 3, 64, 64),), {"verbose": False, "device": "cpu"}, {"": model})


@call("torch_geometric: a step on neighbours that are sampled", "torch_geometric")
def geometric() -> Call:
    from torch_geometric.nn import SAGEConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = SAGEConv(16, 8), SAGEConv(8, 4)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.b(self.a(x, edges).relu(), edges)
            return out

    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    x, edges, labels = torch.randn(20, 16), torch.randint(20, (2, 60)), torch.randint(4, (20,))

    def step(x: torch.Tensor, edges: torch.Tensor, labels: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, edges), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Call(step, (x, edges, labels), {}, {"model": model}, (optimizer,))


# Reinforcement learning


@call("torch: REINFORCE, an episode and a step", "torch")
def reinforce() -> Call:
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)

    def episode(state: torch.Tensor) -> float:
        logs, rewards = [], []
        for _ in range(8):
            distribution = torch.distributions.Categorical(logits=policy(state))
            action = distribution.sample()
            logs.append(distribution.log_prob(action))
            state = state + 0.1 * (2 * action.item() - 1)
            rewards.append(1.0 - float(state.abs().mean()))
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        loss = -(torch.stack(logs) * returns).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Call(episode, (torch.randn(4),), {}, {"policy": policy}, (optimizer,))


@call("torchrl: a rollout of Pendulum", "torchrl")
def rollout() -> Call:
    from tensordict.nn import TensorDictModule
    from torchrl.envs import PendulumEnv

    env = PendulumEnv()
    env.set_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, angle: torch.Tensor, speed: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(torch.stack([angle, speed], -1))
            return out.squeeze(-1)

    policy = TensorDictModule(Policy(), in_keys=["th", "thdot"], out_keys=["action"])
    return Call(functools.partial(env.rollout, 5, policy), (), {}, {"policy": policy}, (env,))


@call("torchrl: a step of ClipPPOLoss", "torchrl")
def ppo() -> Call:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    inner = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4), NormalParamExtractor())
    heads = TensorDictModule(inner, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = ProbabilisticActor(
        TensorDictSequential(heads), in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
    )
    critic = ValueOperator(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), in_keys=["observation"])
    losses = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(losses.parameters())
    with torch.no_grad():
        batch = actor(TensorDict({"observation": torch.randn(8, 4)}, [8]))
    batch["advantage"], batch["value_target"] = torch.randn(8, 1), torch.randn(8, 1)
    batch["next"] = TensorDict(
        {"observation": torch.randn(8, 4), "reward": torch.randn(8, 1), "done": torch.zeros(8, 1, dtype=torch.bool),
         "terminated": torch.zeros(8, 1, dtype=torch.bool)}, [8],
    )  # fmt: skip

    def update() -> float:
        values = losses(batch)
        loss = values["loss_objective"] + values["loss_critic"] + values["loss_entropy"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss)

    return Call(update, (), {}, {"losses": losses}, (optimizer,))
