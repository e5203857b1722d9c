"""The architectures of pFedClub's model zoos, by the names that clients have them under."""

from __future__ import annotations

from intarsia.models.architectures.club_cnn import ClubCNN
from intarsia.models.architectures.mobilenet import MobileNetV2
from intarsia.models.architectures.mobilenet_v1 import MobileNetV1
from intarsia.models.architectures.mobilenet_v3 import MobileNetV3
from intarsia.models.spec import Architecture

NAMED: dict[str, Architecture] = {
    "cnn1": ClubCNN(number=1),
    "cnn2": ClubCNN(number=2),
    "cnn3": ClubCNN(number=3),
    "cnn4": ClubCNN(number=4),
    "mobilenet_v1": MobileNetV1(stride=1),
    "mobilenet_v2": MobileNetV2(stride=1),
    "mobilenet_v3": MobileNetV3(size="small", stride=1),
}
"""What a client's model is if it has one of these names and the settings say nothing else of it.

Wang et al. 2024, section 4.1, for images of 32x32. Ours: MobileNetV3 is the small one, and the stems of the MobileNets
have a stride of 1, so that a 2x2 map is left at their end and batch norm has more than one value to go by.
"""
