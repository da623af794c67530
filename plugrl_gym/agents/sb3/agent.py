"""Stable-Baselines3 as an agent: any client's envs, SB3's own models and training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback

from plugrl_gym.agents.sb3.acting import in_groups
from plugrl_gym.agents.sb3.evaluation import Evaluator
from plugrl_gym.agents.sb3.learners import Learner
from plugrl_gym.agents.sb3.learners.health import check_actions, forward_pass
from plugrl_gym.agents.sb3.policy_spaces import PolicyArray
from plugrl_gym.agents.sb3.run_spaces import RunSpaces
from plugrl_gym.agents.sb3.runs.choices import Choices
from plugrl_gym.agents.sb3.runs.counters import Counters
from plugrl_gym.agents.sb3.runs.evaluations import Evaluations
from plugrl_gym.agents.sb3.runs.keeper import RunKeeper
from plugrl_gym.agents.sb3.runs.resuming import StoredRun, source_of
from plugrl_gym.agents.sb3.runs.snapshot import MODEL
from plugrl_gym.agents.sb3.settings.choice import DEFAULT_TIMESTEPS
from plugrl_gym.agents.sb3.setup import RunSetup, check_counts, make_plan
from plugrl_gym.agents.sb3.threads import TorchThreads
from plugrl_gym.errors import RunFailed, UsageError
from plugrl_gym.protocol import Feedback, Infer, Metadata, SpaceDeclaration
from plugrl_gym.server.agent import Agent, Client, Refusal, Request
from plugrl_gym.spaces import build_space

__all__ = ["DEFAULT_TIMESTEPS", "SB3Agent"]


class SB3Agent(Agent):
    """Trains one SB3 model on what all clients send.

    The model is built when the first client shows its spaces, or from ``observation_space`` and
    ``action_space`` for clients that cannot (plain v1). All later clients must have the same.
    One client of N envs in lockstep (SAME_STEP resets) gets weights that are byte for byte those
    of SB3's own ``learn()``.

    Args:
        algorithm: ``"ppo"``, ``"sac"`` or another name that ``serve --help`` lists, or a class
            that shares SB3's on-policy or off-policy loop; None for that of ``resume`` or
            ``load``, else PPO.
        total_timesteps: Env steps to learn from, rounded up to whole rollouts as SB3 does. None
            for the preset's number, else :data:`DEFAULT_TIMESTEPS`.
        policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"`` or a class; None to
            choose by the spaces.
        seed: Seeds Python, NumPy and torch when the model is built, as SB3 does.
        num_envs: E, where a rollout is ``n_steps * E`` transitions, and an off-policy algorithm
            updates every ``train_freq * E`` env steps, whichever env sends them; None for the
            first learning client's number of envs.
        hyperparameters: Any arguments of the SB3 constructor; they win over a file and a preset.
            ``"lin_X"`` is a schedule that falls linearly from X to 0, ``"normal:0.1"`` action
            noise, and in ``policy_kwargs`` ``"ReLU"`` that class of torch.
        hyperparameter_file: YAML as of rl-baselines3-zoo (or TOML); wins over a preset. None for
            none.
        preset: ``"auto"`` takes the preset of the env that the first client declares, ``"none"``
            takes none, any other str is the env id of the preset to take.
        run_dir: Gets config.json, checkpoints, model.zip and progress.csv; it must not hold
            another run. None for no files.
        observation_space, action_space: Of a single env; both or neither.
        env_id: Stands in for the declaration of clients that make none.
        console: Gets SB3's table of numbers after each update; None for none.
        callback: SB3 callback(s). Their ``on_step`` runs once for each feedback message.
        log_interval: Updates, or episodes of an off-policy algorithm, between two lines of the
            log; None for SB3's default.
        eval_episodes: Episodes of one evaluation, which a client with ``mode: "eval"`` plays under
            one policy; its mean goes into the log and evaluations.csv, and the best policy into
            best_model.zip.
        final_evaluation: Once everything is learned, leave time for an evaluation: the run is over
            when a learning client asks for a further action, or leaves.
        horizon: H, env steps that the policy chooses at once, as one flat action. Timesteps are
            env steps always, a rollout is as many transitions as ever; the discount is per env
            step, GAE's lambda per transition. None for 1, or that of ``resume``.
        normalize: True keeps running statistics of observations and rewards, normalizes both by
            them and saves them as vecnormalize.pkl, for SB3's VecNormalize; a mapping has its
            arguments, None is for what a preset says. Evaluating clients add nothing to them.
        max_policy_lag: Updates that an on-policy transition may be old, for among several clients
            one may still run what an older policy chose. It keeps that policy's log-probability,
            so that the ratio corrects for it. Older ones are left out, and nothing is estimated
            across the gap. None for 1, or that of ``resume``.
        resume: The directory of a run that goes on, from its newest whole checkpoint, as if
            nothing had happened. All settings are its own; ``total_timesteps`` may be larger than
            it was, and schedules then are where they would be if it had always been that. The
            ``callback`` must be given again; how often it was called is known. The files may run
            code of whoever wrote them.
        load: A model that plain SB3 saved, from which a new run goes on learning: its weights,
            optimizers and, where there are no ``hyperparameters`` here, its settings. Env steps,
            and with them schedules and exploration, begin at 0, as after SB3's own ``load()``.
            Statistics of a vecnormalize.pkl beside it are taken over.
        save_every: Env steps between two checkpoints in ``run_dir``; each is written before the
            next action after as many steps. There is one at the start and one at the end. 0 for
            one at the end only; None for 10,000, or what the resumed run had.
        keep: How many checkpoints stay; None for 3, or what the resumed run had.
        async_learn: Act on a copy of the policy while the model learns in its thread, off-policy
            algorithms only. The ratio of gradient steps to env steps stays: where learning falls
            more than two updates behind, acting waits. Such a run cannot be repeated exactly.
            None for False, or that of ``resume``.
        demonstrations_share: Off-policy algorithms only: this share of each batch is drawn from the
            chunks in which somebody took over (``gym-executed-actions``), while there are any, the
            rest from the policy's own. 0 draws from all alike, as SB3 does. None for 0, or that of
            ``resume``.
        torch_threads: How many threads torch calculates with, in the whole process. ``"auto"``
            takes one where the policy sees no images, which leaves the other cores to the envs;
            None leaves torch as it is. Another number of threads may give weights other in their
            last bits.
        arguments: More hyperparameters, for ``SB3Agent("ppo", n_steps=128)``.

    Attributes:
        model: The SB3 model; None until it is built.
        counters: What happened so far.
        evaluations: What evaluating clients found so far.

    Raises:
        UsageError: An unknown algorithm, hyperparameter or preset, or settings that SB3 refuses.

    Example:
        >>> agent = SB3Agent("ppo", total_timesteps=10_000, seed=0, n_steps=128)
        >>> agent.metadata().algorithm
        'PPO'
    """

    def __init__(
        self,
        algorithm: str | type[BaseAlgorithm] | None = None,
        *,
        total_timesteps: int | None = None,
        policy: str | type[BasePolicy] | None = None,
        seed: int | None = None,
        num_envs: int | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        hyperparameter_file: str | Path | None = None,
        preset: str = "auto",
        run_dir: str | Path | None = None,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        env_id: str | None = None,
        console: TextIO | None = None,
        callback: MaybeCallback = None,
        log_interval: int | None = None,
        eval_episodes: int = 10,
        final_evaluation: bool = False,
        horizon: int | None = None,
        normalize: bool | str | Mapping[str, Any] | None = None,
        max_policy_lag: int | None = None,
        resume: str | Path | None = None,
        load: str | Path | None = None,
        save_every: int | None = None,
        keep: int | None = None,
        async_learn: bool | None = None,
        demonstrations_share: float | None = None,
        torch_threads: TorchThreads = None,
        **arguments: Any,
    ) -> None:
        check_counts(total_timesteps=total_timesteps, num_envs=num_envs)
        check_counts(eval_episodes=eval_episodes, horizon=horizon)
        source = source_of(resume, load)
        named = algorithm or ("ppo" if source is None else source.algorithm)
        explicit = {**(hyperparameters or {}), **arguments}
        plan = make_plan(named, policy, seed, explicit, horizon or 1, normalize)
        if isinstance(source, StoredRun):
            source.check(horizon=horizon)
        asked = Choices(
            total_timesteps,
            num_envs,
            env_id,
            None if run_dir is None else Path(run_dir),
            preset,
            None if hyperparameter_file is None else str(hyperparameter_file),
            log_interval,
            save_every,
            keep,
            max_policy_lag,
            async_learn,
            demonstrations_share,
        )
        self._setup = RunSetup(plan, asked, source, torch_threads)
        self._choices = self._setup.choices
        self._console, self._callback = console, callback
        self.model: OnPolicyAlgorithm | OffPolicyAlgorithm | None = None
        self.counters = Counters()
        self.evaluations = Evaluations(self._choices.run_dir, self._setup.known_steps)
        self._eval_episodes = eval_episodes
        self._evaluator: Evaluator | None = None
        self._waiting = final_evaluation
        self._learning_clients = 0
        self._learner: Learner[Any, Any] | None = None
        self._keeper = RunKeeper(self._choices, self._setup.run)
        self._known_rows = 0
        self._spaces = self._setup.known_spaces(observation_space, action_space)
        self._begin()

    # -- the run, for commands ------------------------------------------------------------

    @property
    def timesteps(self) -> int:
        """Env steps that learning clients have run."""
        return 0 if self.model is None else self.model.num_timesteps

    @property
    def total_timesteps(self) -> int:
        """Env steps after which the run ends."""
        return self._setup.total_timesteps

    @property
    def env_id(self) -> str | None:
        """Of the run's env; None while neither the caller nor a client has said it."""
        return self._setup.env_id

    @property
    def model_path(self) -> Path | None:
        """Where :meth:`close` puts the model; None without a run directory."""
        return None if self._choices.run_dir is None else self._choices.run_dir / MODEL

    @property
    def noted(self) -> Mapping[str, Any]:
        """What :meth:`note_with` gave for the checkpoint that was resumed; empty for a new run."""
        return {} if self._setup.run is None else self._setup.run.noted

    def note_with(self, note: Callable[[], Mapping[str, Any]]) -> None:
        """Let something be noted in each checkpoint; ``note`` gives JSON, from any thread."""
        self._keeper.note = note

    def log_with(self, columns: Callable[[], Mapping[str, float | None]]) -> None:
        """Let more columns stand in each line of progress.csv; None leaves a place empty.

        ``columns`` is called from any thread; what is set before the first client counts.
        """
        self._setup.columns = columns

    # -- what the server calls ------------------------------------------------------------

    def metadata(self) -> Metadata:
        """Algorithm, policy and action size as far as they are known."""
        plan = self._setup.plan
        policy = plan.policy
        if self._spaces is not None:
            policy = plan.policy_for(self._spaces.observations.space)
        return Metadata(
            algorithm=plan.algorithm.__name__,
            policy=policy.__name__ if isinstance(policy, type) else policy,
            action_horizon=plan.horizon,
            action_dim=None if self._spaces is None else self._spaces.actions.dim,
        )

    def join(self, client: Client) -> None:
        """Build the model for the first client; compare the spaces of every other."""
        declaration = client.declaration
        if declaration is None:
            if self._spaces is None:
                raise Refusal(
                    f"this {self._setup.plan.name} server knows no spaces and the client declares "
                    "none; start it with an env id"
                )
        else:
            try:
                self._serve(declaration)
            except UsageError as error:
                raise Refusal(str(error)) from error
        self._learning_clients += client.learning

    def prepare(self, client: Client, infer: Infer) -> Any:
        """Decode a request's observation for the policy."""
        assert self._spaces is not None  # join has refused where there are none
        observation = self._spaces.observations.decode(infer.observation, "infer.data")
        declared = client.declaration
        rows = len(infer.env_indices) if declared is None else declared.num_envs
        begins = self._learner is None and client.learning
        try:
            if self.model is None:
                self._build(self._spaces, rows, self.env_id)
            if begins:
                assert self.model is not None
                self._setup.check_learning(self.model, rows)
        except UsageError as error:
            raise Refusal(str(error)) from error
        if begins:
            self._start_learning(rows)
        self._end_wait(client)
        return observation

    def act(self, requests: Sequence[Request]) -> list[npt.NDArray[np.generic]]:
        """Draw actions for learning clients, take the most likely ones for evaluating clients."""
        chosen = in_groups(requests, lambda request: request.client.learning, self._choose)
        assert self._spaces is not None
        assert self.model is not None
        to_wire, policy = self._spaces.actions.to_wire, self.model.policy
        return [to_wire(actions, policy) for actions in chosen]

    def _choose(self, learning: bool, requests: Sequence[Request]) -> list[PolicyArray]:
        if not learning:
            assert self._evaluator is not None  # prepare has made it, with the model
            return self._evaluator.act(requests)
        assert self._learner is not None  # prepare has made it
        with self._keeper.failing(), forward_pass(self.timesteps):
            drawn = self._learner.act(requests)
            check_actions(drawn, self.timesteps)
        return drawn

    def feedback(self, client: Client, feedback: Feedback) -> Mapping[str, int]:
        """Store transitions; an evaluating client's are left alone."""
        if not client.learning:
            assert self._evaluator is not None
            self._evaluator.feedback(client, feedback)
            return {"evaluation": len(feedback.env_indices)}
        assert self._spaces is not None
        assert self._learner is not None
        if self._learner.finished:
            return {"run over": len(feedback.env_indices)}
        following = self._spaces.observations.decode(feedback.observation, "feedback.data.obs")
        with self._keeper.failing():
            return self._learner.feedback(client, feedback, following)

    def leave(self, client: Client) -> None:
        """Cut the client's trajectories where they are, without an end of the episode."""
        if not client.learning and self._evaluator is not None:
            self._evaluator.leave(client)
        if self._learner is not None and client.learning:
            self._learner.leave(client)
        self._learning_clients -= client.learning
        self._end_wait(client)

    def _end_wait(self, client: Client) -> None:
        """This client does not evaluate now; once everything is learned, the run is over."""
        if client.learning and self._learner is not None and self._learner.finished:
            self._waiting = False

    @property
    def learning_due(self) -> bool:
        """Whether a rollout is complete, or a checkpoint due."""
        learner = self._learner
        if learner is None or learner.asynchronous:
            return learner is not None and learner.due
        return learner.due or self._keeper.due(learner)

    @property
    def learning_wanted(self) -> bool:
        """Whether there is something to learn, or a checkpoint due, with ``async_learn``."""
        learner = self._learner
        if learner is None or not learner.asynchronous:
            return False
        return learner.wanted or self._keeper.due(learner)

    def learn(self) -> None:
        """Train on the complete rollout; write a checkpoint where one is due."""
        if self._learner is None:
            return
        with self._keeper.failing():
            if self._learner.due or self._learner.wanted:
                self._learner.learn()
            if self._keeper.due(self._learner):
                self._keeper.save_or_warn(self._learner, self.counters)

    @property
    def finished(self) -> bool:
        """Whether all env steps are learned from, or a callback ended the run."""
        # The last update may come, aside, after all that could evaluate have left.
        waiting = self._waiting and self._learning_clients > 0
        return self._learner is not None and self._learner.finished and not waiting

    def close(self) -> None:
        """Write the last checkpoint, unless learning has failed, and close the log.

        Raises:
            RunFailed: It cannot be written; older ones are intact.
        """
        try:
            if self._learner is not None:
                self._learner.close()
        finally:
            try:
                self.save()
            finally:
                if self._learner is not None:
                    self._learner.model.logger.close()
                self._keeper.close()

    @property
    def rows_stored(self) -> int:
        """Rows that went into rollouts or the replay buffer, counted there."""
        return 0 if self._learner is None else self._learner.rows_kept - self._known_rows

    def save(self) -> None:
        """Write a checkpoint and model.zip now; nothing without a run directory or a model.

        Raises:
            RunFailed: The disk does not take it; older ones are intact.
        """
        if self._learner is not None:
            self._keeper.save(self._learner, self.counters)
        elif self.model is not None:
            self._keeper.save_model(self.model)

    # -- building -------------------------------------------------------------------------

    def _begin(self) -> None:
        """Build what can be before a client comes; a resumed run is as it was then."""
        run = self._setup.run
        if self._spaces is None:
            return
        if run is None:
            if self._choices.num_envs is not None:
                self._build(self._spaces, self._choices.num_envs, self.env_id)
            return
        self._build(self._spaces, run.config.num_envs, self.env_id)
        self._start_learning(run.config.num_envs)
        assert self._learner is not None
        run.restore(self._learner, self.counters)
        if not self._learner.asynchronous:
            with self._keeper.failing():
                self._learner.learn()  # where the run was stopped before an update that was due
        self._known_rows = self._learner.rows_kept

    def _serve(self, declaration: SpaceDeclaration) -> None:
        """Compare declared spaces with the run's; the first ones become the run's.

        Raises:
            Refusal: They differ.
            UsageError: There can be no model for them.
        """
        observation = build_space(declaration.observation)
        action = build_space(declaration.action)
        difference = self._spaces and self._spaces.difference(observation, action)
        if difference:
            raise Refusal(difference)
        if self.model is None:
            plan = self._setup.plan_for(declaration.env_id)
            adapted = self._spaces or RunSpaces.of(plan, observation, action)
            # A client that evaluates says nothing of how many envs will be learned from.
            evaluates = declaration.mode == "eval"
            rows = plan.fitting_num_envs() if evaluates else declaration.num_envs
            self._build(adapted, rows, declaration.env_id)

    def _build(self, adapted: RunSpaces, rows: int, env_id: str | None) -> None:
        """Build the model for a first client of ``rows`` envs; what fails leaves no trace."""
        self.model = self._setup.build(adapted, rows, env_id)
        self._spaces = adapted
        self._evaluator = Evaluator(
            self.model,
            self._eval_episodes,
            self._setup.plan.horizon,
            self.evaluations,
            self._choices.run_dir,
        )

    def _start_learning(self, rows: int) -> None:
        """Begin the run, or go on with it, with a first client of ``rows`` envs.

        Raises:
            RunFailed: It cannot begin.
        """
        try:
            with self._keeper.failing():
                self._make_learner(rows)
        except RunFailed:
            raise
        except Exception as error:  # of the user's callback, or where the log goes
            raise RunFailed(f"the run cannot begin: {type(error).__name__}: {error}") from error

    def _make_learner(self, rows: int) -> None:
        assert self.model is not None
        assert self._spaces is not None  # they come with the model
        envs = self._choices.num_envs or rows
        self._keeper.begin(self._setup.config(self._spaces, envs))
        self._setup.set_logger(self.model, self._console)
        self._learner = self._setup.learner(
            self.model, self._spaces, envs, self.counters, self._callback
        )
        if self._evaluator is not None:
            self._evaluator.follow(self._learner)
        if self._keeper.due(self._learner):
            self._keeper.save_or_warn(self._learner, self.counters)
