"""The client: envs here, the policy elsewhere."""

from __future__ import annotations

from plugrl_gym.client.evaluation import EvaluationSummary, PeriodicEvaluation, evaluate
from plugrl_gym.client.keyboard import Keyboard
from plugrl_gym.client.loop import RunSummary
from plugrl_gym.client.minari_dataset import MinariDataset
from plugrl_gym.client.recording import MinariRecorder
from plugrl_gym.client.statistics import ClientStatistics
from plugrl_gym.client.takeover import Sometimes, Takeover
from plugrl_gym.client.vector_env import PlugRLVectorEnv

__all__ = [
    "ClientStatistics",
    "EvaluationSummary",
    "Keyboard",
    "MinariDataset",
    "MinariRecorder",
    "PeriodicEvaluation",
    "PlugRLVectorEnv",
    "RunSummary",
    "Sometimes",
    "Takeover",
    "evaluate",
]
