# SPDX-License-Identifier: BSD-3-Clause
"""The models of the zoo: public architectures in tiny configurations, with random weights.

Each function builds a model and says how to get a loss from it; inputs are small, but their activations
outweigh the weights, as in real training. Libraries are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Built = tuple[nn.Module, Callable[[nn.Module], Tensor]]
"""A model, and what gets a loss from it."""


@dataclass(frozen=True)
class Entry:
    name: str
    build: Callable[[], Built]
    in_ci: bool
    changes: bool  # from step to step: shapes depend on what it predicts


ENTRIES: dict[str, Entry] = {}


def listed(
    build: Callable[[], Built] | None = None, *, in_ci: bool = False, changes: bool = False
) -> Callable[..., Callable[[], Built]]:
    """Puts a function of the model's name into the zoo; those in CI need the test extra alone."""

    def enter(build: Callable[[], Built]) -> Callable[[], Built]:
        ENTRIES[build.__name__] = Entry(build.__name__, build, in_ci, changes)
        return build

    return enter(build) if build else enter


def classified(model: nn.Module, *shape: int, num_classes: int = 5) -> Built:
    inputs, labels = torch.randn(*shape), torch.arange(shape[0]) % num_classes
    return model, lambda model: F.cross_entropy(model(inputs), labels)


def tokens(*shape: int, most: int) -> Tensor:
    return torch.randint(0, most, shape)


# Images


@listed
def resnet18() -> Built:
    from torchvision.models import resnet18

    return classified(resnet18(num_classes=5), 12, 3, 96, 96)


@listed
def densenet121() -> Built:
    from torchvision.models import densenet121

    return classified(densenet121(num_classes=5, drop_rate=0.1), 6, 3, 64, 64)


@listed(in_ci=True)
def mobilenet_v3_small() -> Built:
    from torchvision.models import mobilenet_v3_small

    return classified(mobilenet_v3_small(num_classes=5), 16, 3, 96, 96)


@listed
def efficientnet_b0() -> Built:
    from torchvision.models import efficientnet_b0

    return classified(efficientnet_b0(num_classes=5), 8, 3, 64, 64)


@listed
def regnet_y_400mf() -> Built:
    from torchvision.models import regnet_y_400mf

    return classified(regnet_y_400mf(num_classes=5), 8, 3, 96, 96)


@listed
def googlenet() -> Built:
    from torchvision.models import googlenet

    model = googlenet(num_classes=5, init_weights=False, aux_logits=True)
    images, labels = torch.randn(6, 3, 96, 96), torch.arange(6) % 5

    def loss_of(model: nn.Module) -> Tensor:
        heads = model(images)
        return sum(F.cross_entropy(head, labels) for head in heads if head is not None)

    return model, loss_of


@listed
def convnext() -> Built:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(24, 48, 2), CNBlockConfig(48, None, 2)]
    return classified(ConvNeXt(blocks, stochastic_depth_prob=0.2, num_classes=5), 8, 3, 64, 64)


@listed(in_ci=True)
def vision_transformer() -> Built:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(64, 8, 3, 4, 64, 128, dropout=0.1, num_classes=5)
    return classified(model, 8, 3, 64, 64)


@listed(in_ci=True)
def swin_transformer() -> Built:
    from torchvision.models import SwinTransformer

    return classified(
        SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=5), 8, 3, 64, 64
    )


# Detection


def detected(model: nn.Module, num_images: int, size: int) -> Built:
    images = [torch.rand(3, size, size) for _ in range(num_images)]
    corners = torch.rand(num_images, 3, 2) * size / 2
    sizes = (0.2 + 0.3 * torch.rand(num_images, 3, 2)) * size
    boxes = torch.cat([corners, corners + sizes], 2)
    targets = [{"boxes": one, "labels": torch.tensor([1, 2, 1])} for one in boxes]

    def loss_of(model: nn.Module) -> Tensor:
        return sum(model(images, targets).values())

    return model, loss_of


@listed(changes=True)
def fasterrcnn() -> Built:
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=128, max_size=128
    )
    return detected(model, 4, 128)


@listed(changes=True)
def retinanet() -> Built:
    from torchvision.models import resnet18
    from torchvision.models.detection import RetinaNet
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    layers = {"layer1": "0", "layer2": "1"}
    backbone = BackboneWithFPN(resnet18(), layers, [64, 128], 32)
    anchors = AnchorGenerator(((16,), (32,), (64,)), ((0.5, 1.0, 2.0),) * 3)
    model = RetinaNet(backbone, 3, min_size=128, max_size=128, anchor_generator=anchors)
    return detected(model, 4, 128)


@listed(changes=True)
def ssdlite() -> Built:
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    return detected(model, 2, 320)


# Segmentation


def segmented(model: nn.Module, *shape: int) -> Built:
    images, labels = torch.randn(*shape), torch.randint(0, 5, (shape[0], *shape[2:]))

    def loss_of(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(images)["out"], labels)

    return model, loss_of


@listed
def deeplabv3() -> Built:
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return segmented(model, 4, 3, 96, 96)


@listed
def lraspp() -> Built:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return segmented(model, 6, 3, 96, 96)


@listed
def fcn() -> Built:
    from torchvision.models import resnet18
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    backbone = IntermediateLayerGetter(resnet18(), {"layer3": "out"})
    return segmented(FCN(backbone, FCNHead(256, 5)), 6, 3, 96, 96)


# Video


@listed
def r3d() -> Built:
    from torchvision.models.video import r3d_18

    model = r3d_18(num_classes=5)
    model.layer3 = model.layer4 = nn.Identity()
    model.fc = nn.Linear(128, 5)
    return classified(model, 2, 3, 6, 48, 48)


@listed
def mvit() -> Built:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    kernel, same, halved = [3, 3, 3], [1, 1, 1], [1, 2, 2]
    blocks = [
        MSBlockConfig(1, 16, 32, kernel, kernel, same, halved),
        MSBlockConfig(2, 32, 32, kernel, kernel, halved, halved),
        MSBlockConfig(2, 32, 32, kernel, kernel, same, same),
    ]
    model = MViT(
        (64, 64),
        4,
        blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=5,
    )
    return classified(model, 4, 3, 4, 64, 64)


# timm


def of_timm(name: str, size: int, batch: int, **options: object) -> Built:
    import timm

    return classified(timm.create_model(name, num_classes=5, **options), batch, 3, size, size)


@listed
def timm_resnet() -> Built:
    return of_timm("resnet10t", 96, 12, drop_path_rate=0.1)


@listed
def timm_convnext() -> Built:
    return of_timm("convnext_atto", 64, 12)


@listed
def timm_vit() -> Built:
    return of_timm("vit_tiny_patch16_224", 64, 32, img_size=64, patch_size=8, depth=3)


@listed
def timm_swin() -> Built:
    options = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
    return of_timm("swin_tiny_patch4_window7_224", 64, 8, img_size=64, **options)


# Transformers


def of_language(model: nn.Module, *shape: int, most: int = 64) -> Built:
    text = tokens(*shape, most=most)
    return model, lambda model: model(input_ids=text, labels=text).loss


@listed
def gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=3, n_head=4)
    return of_language(GPT2LMHeadModel(config), 8, 64)


@listed
def llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return of_language(LlamaForCausalLM(config), 8, 64)


@listed
def mixtral() -> Built:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=64,
        output_router_logits=True,
    )
    return of_language(MixtralForCausalLM(config), 8, 64)


@listed
def bert() -> Built:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return of_language(BertForMaskedLM(config), 8, 64)


@listed
def t5() -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return of_language(T5ForConditionalGeneration(config), 8, 32)


@listed
def whisper() -> Built:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=64,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=48,
        max_target_positions=32,
        dropout=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    sound, text = torch.randn(8, 16, 96), tokens(8, 24, most=64)
    return WhisperForConditionalGeneration(
        config
    ), lambda model: model(input_features=sound, labels=text).loss


@listed
def transformers_vit() -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=4,
        num_labels=5,
        hidden_dropout_prob=0.1,
    )
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8) % 5
    return ViTForImageClassification(
        config
    ), lambda model: model(pixel_values=images, labels=labels).loss


# Diffusion


@listed
def unet2d() -> Built:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
    )
    noisy, noise, times = torch.randn(8, 3, 16, 16), torch.randn(8, 3, 16, 16), torch.arange(8)
    return model, lambda model: F.mse_loss(model(noisy, times).sample, noise)


@listed
def diffusion_transformer() -> Built:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=16,
        patch_size=2,
        num_embeds_ada_norm=50,
        norm_num_groups=4,
    )
    noisy, noise = torch.randn(8, 4, 16, 16), torch.randn(8, 4, 16, 16)
    times, labels = torch.arange(8), torch.arange(8) % 5

    def loss_of(model: nn.Module) -> Tensor:
        return F.mse_loss(model(noisy, timestep=times, class_labels=labels).sample, noise)

    return model, loss_of


# Medicine


@listed(in_ci=True)
def monai_unet() -> Built:
    from monai.networks.nets import UNet

    model = UNet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=2, dropout=0.1)
    return of_volume(model, 2, 32)


@listed
def swin_unetr() -> Built:
    from monai.networks.nets import SwinUNETR

    model = SwinUNETR(
        in_channels=1,
        out_channels=2,
        patch_size=2,
        depths=(1, 1, 1, 1),
        num_heads=(2, 2, 2, 2),
        window_size=4,
        feature_size=12,
        drop_rate=0.1,
    )
    return of_volume(model, 1, 64)


def of_volume(model: nn.Module, batch: int, size: int) -> Built:
    volumes = torch.randn(batch, 1, size, size, size)
    labels = torch.randint(0, 2, (batch, size, size, size))
    return model, lambda model: F.cross_entropy(model(volumes), labels)


# Plain PyTorch


class Translator(nn.Module):
    """An LSTM that reads a sentence and one that writes it, with attention between."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.reader = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.writer = nn.LSTM(width, 2 * width, batch_first=True)
        self.head = nn.Linear(4 * width, 64)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        read, (hidden, cell) = self.reader(self.embedding(source))
        start = tuple(torch.cat([state[-2], state[-1]], 1)[None] for state in (hidden, cell))
        written, _ = self.writer(self.embedding(target[:, :-1]), start)
        weights = torch.softmax(written @ read.transpose(1, 2), -1)
        logits = self.head(torch.cat([written, weights @ read], 2))
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


@listed
def lstm_translator() -> Built:
    source, target = tokens(16, 24, most=64), tokens(16, 20, most=64)
    return Translator(), lambda model: model(source, target)


class GraphNetwork(nn.Module):
    """Messages along edges, summed at their ends; the mean of all nodes is classified."""

    def __init__(self, width: int = 32, num_layers: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(num_layers))
        self.updates = nn.ModuleList(nn.GRUCell(width, width) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(num_layers))
        self.leave = nn.Linear(width, 5)

    def forward(self, nodes: Tensor, edges: Tensor, graph_of: Tensor, num_graphs: int) -> Tensor:
        hidden = self.enter(nodes).relu()
        for message, update, norm in zip(self.messages, self.updates, self.norms, strict=True):
            ends = torch.cat([hidden.index_select(0, edge) for edge in edges], 1)
            received = torch.zeros_like(hidden).index_add(0, edges[1], message(ends).relu())
            hidden = F.dropout(norm(update(received, hidden)), 0.1, self.training)
        pooled = torch.zeros(num_graphs, hidden.shape[1]).index_add(0, graph_of, hidden)
        return self.leave(pooled / torch.bincount(graph_of, minlength=num_graphs)[:, None])


@listed(in_ci=True)
def graph_network() -> Built:
    nodes, edges = torch.randn(400, 8), torch.randint(0, 400, (2, 1600))
    graph_of, labels = torch.arange(400) % 10, torch.arange(10) % 5
    return GraphNetwork(), lambda model: F.cross_entropy(model(nodes, edges, graph_of, 10), labels)
