# SPDX-License-Identifier: Apache-2.0
"""Cases of timm and torchvision."""

from __future__ import annotations

from typing import Any

import timm
import torchvision
from timm.models.swin_transformer import SwinTransformer
from torch import nn
from zoo import CLASSES, Case, classified, pixels


def of_timm(name: str, **options: Any) -> Any:
    return lambda: timm.create_model(name, num_classes=CLASSES, drop_rate=0.0, **options)


def swin() -> nn.Module:
    return SwinTransformer(
        img_size=16, patch_size=2, num_classes=CLASSES, embed_dim=8, depths=(2, 1),
        num_heads=(1, 2), window_size=4, drop_path_rate=0.0,
    )  # fmt: skip


def resnet18() -> nn.Module:
    return torchvision.models.resnet18(num_classes=CLASSES)  # type: ignore[no-any-return]


def mobilenet_v3() -> nn.Module:
    return torchvision.models.mobilenet_v3_small(num_classes=CLASSES, dropout=0.0)  # type: ignore[no-any-return]


CASES = {
    "ResNet of timm": Case(of_timm("test_resnet"), pixels(32), classified),
    "EfficientNet": Case(of_timm("test_efficientnet"), pixels(32), classified),
    "MobileNetV3 of timm": Case(
        of_timm("mobilenetv3_small_050"), pixels(32), classified, slow=True
    ),
    "ConvNeXt": Case(of_timm("test_convnext"), pixels(32), classified),
    "ViT of timm": Case(of_timm("test_vit", img_size=32), pixels(32), classified),
    "Swin": Case(swin, pixels(), classified),
    "ResNet18": Case(resnet18, pixels(32), classified, slow=True),
    "MobileNetV3": Case(mobilenet_v3, pixels(32), classified, slow=True),
}
