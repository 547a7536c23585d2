"""The host of a front end: opens the model and the session, and offers what stands beside the event stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pointcode_local import __version__
from pointcode_local.agent import Agent, Menu
from pointcode_local.background_map import BackgroundMap
from pointcode_local.complete import COMMANDS, SlashCommand, no_such_command, parse_slash
from pointcode_local.compose import Setup, models_to_choose, open_model, pick_tools, system_prompt
from pointcode_local.config import set_value, set_values
from pointcode_local.engine.errors import EngineError
from pointcode_local.engine.types import ChatModel, SamplingParams
from pointcode_local.engine_view import EngineWatch
from pointcode_local.events import AgentEvent, FileDiff, SessionInfo
from pointcode_local.exits import UsageError
from pointcode_local.frontend import (
    EngineView,
    FirstLook,
    HostError,
    HostInfo,
    JobInfo,
    OnProgress,
    Progress,
    Timeline,
    ToolAdapter,
)
from pointcode_local.open_session import OpenSession, SessionChoice
from pointcode_local.own_commands import OwnCommand, own_commands
from pointcode_local.runner import Toolbox
from pointcode_local.trace_file import last_trace
from pointcode_local.turn import AgentLimits

if TYPE_CHECKING:
    from pointcode_local.kit import ToolKit


class AppHost:
    """Owns model, tools, session and agent for as long as a front end runs."""

    def __init__(
        self,
        setup: Setup,
        choice: SessionChoice | None = None,
        *,
        interactive: bool,
        open_model: Callable[..., Any] = open_model,
        adapter: ToolAdapter | None = None,
    ) -> None:
        self._setup = setup
        self._choice = choice or SessionChoice()
        self._interactive = interactive
        self._open_model = open_model
        self._adapter = adapter
        self._session = OpenSession(setup.places, setup.cwd)
        self._model: ChatModel | None = None
        self._agent: Agent | None = None
        self._kit: ToolKit | None = None
        self._map: BackgroundMap | None = None
        self._watch = EngineWatch()

    # ------------------------------------------------------------------------------------------- opening
    async def open(self, on_progress: OnProgress) -> Agent:
        """Open the session asked for and load the model.

        Raises HostError; scripted runs, which have an exit code for each, get EngineError and UsageError as they are.
        """
        self.open_session()
        settings = self._setup.settings
        if settings.repo_map_tokens and settings.endpoint and settings.small_model != "yes":
            await self._opened_map.begin()  # beside the connection; a local model may turn out to be a small one
        try:
            self._model = await self._open_model(self._setup.settings, self._setup.places, on_progress)
            await self._opened_kit.start_servers()
            for problem in self.problems:
                on_progress(Progress(problem))
            agent = self._new_agent()
        except (EngineError, UsageError) as error:
            if self._interactive:
                raise HostError(str(error)) from error
            raise
        if settings.repo_map_tokens and not self._is_small:
            await self._opened_map.start()
        return agent

    @property
    def _opened_map(self) -> BackgroundMap:
        if self._map is None:
            cache = self._setup.places.cache
            self._map = BackgroundMap(self._setup.cwd, cache, lambda name: self._opened_kit.is_hidden(name))
        return self._map

    def _map_text(self, max_tokens: int) -> str:
        limit = self._setup.settings.repo_map_tokens
        return self._map.text(min(max_tokens, limit)) if self._map is not None and limit else ""

    def open_session(self) -> str:
        """Open the session asked for, if that was not done yet; returns its id. Raises HostError."""
        log = self._session.log or self._session.open(self._choice)
        return log.id

    def _change_session(self, choice: SessionChoice) -> Agent:
        self._session.open(choice)
        if self._kit is not None:
            self._kit.policy.leave_session()
        return self._new_agent()

    def _new_agent(self) -> Agent:
        model, log, settings = self._model, self._session.log, self._setup.settings
        assert model is not None and log is not None
        menu = self._menu(model)
        self._agent = Agent(
            model=model,
            toolbox=self._toolbox(),
            log=log,
            system=system_prompt(small=self._is_small, blocks=menu == "blocks"),
            history=self._session.history,
            limits=AgentLimits(max_turns=settings.max_turns),
            home=self._setup.places.config,
            sampling=SamplingParams(temperature=settings.temperature) if settings.temperature >= 0 else None,
            repo_map=self._map_text,
            menu=menu,
        )
        return self._agent

    @property
    def _is_small(self) -> bool:
        choice = self._setup.settings.small_model
        return choice == "yes" or (choice == "auto" and self._model is not None and self._model.is_small)

    def _menu(self, model: ChatModel) -> Menu:
        """The edit menu: as set for this model or for all, else blocks for small models that can be led to them."""
        chosen = self._setup.settings.menu_of(model.name, getattr(model, "identity", ""))
        if not getattr(model, "takes_prefix", False):
            return "tools"
        return "blocks" if chosen == "blocks" or (chosen == "auto" and self._is_small) else "tools"

    @property
    def _opened_kit(self) -> ToolKit:
        from pointcode_local.kit import ToolKit

        if self._kit is None:
            self._kit = ToolKit(self._setup.settings, self._setup.places, self._setup.cwd, small_model=self._is_small)
        return self._kit

    def _toolbox(self) -> Toolbox:
        kit = self._opened_kit
        tools, withheld = pick_tools(kit.tools, self._setup.allowed_tools)
        if self._adapter is not None:
            tools = dict(self._adapter.adapt(tools, kit.workspace))
        return Toolbox(
            tools=tools,
            withheld=withheld,
            policy=kit.policy,
            workspace=kit.workspace,
            root=self._setup.cwd,
            checkpoints=self._session.checkpoints(kit.workspace.files.read),
            watch=kit.watch,
            interactive=self._interactive,
            sandbox=kit.policy.sandbox_for,
            hooks=kit.hooks,
            prepare=self._adapter.prepare if self._adapter is not None else None,
            going_on=kit.told_of_jobs,
        )

    # ------------------------------------------------------------------------------------------- services
    @property
    def info(self) -> HostInfo:
        """What the status line shows."""
        settings, model = self._setup.settings, self._model
        return HostInfo(
            model=model.name if model else settings.model or "default",
            backend=settings.endpoint or str(getattr(model, "backend", settings.backend)),
            sandbox=self._kit.sandbox_name if self._kit else "",
            mode=self._kit.policy.mode if self._kit else settings.permission_mode,
            cwd=self._setup.cwd,
            context_limit=model.context_tokens if model else 0,
            session_id=self._session.log.id if self._session.log else "",
            version=__version__,
            n_jobs=self._kit.n_jobs if self._kit else 0,
            session_rules=self._kit.policy.session_rules if self._kit else (),
        )

    def history(self) -> Sequence[AgentEvent]:
        """The open session's events so far."""
        return self._session.events()

    async def new_session(self) -> Agent:
        """Start an empty session with the same model."""
        return self._change_session(SessionChoice())

    async def resume(self, session_id: str) -> Agent:
        """Open a stored session; the one that is open stays when that fails."""
        log = self._session.log
        if log is not None and log.id == session_id and self._agent is not None:
            return self._agent
        return self._change_session(SessionChoice(resume=session_id))

    async def undo(self) -> str:
        """Put back the files that the last turn changed."""
        return self._noted("The user undid your last changes", self._session.undo()) or "nothing to undo"

    async def redo(self) -> str:
        """Make the changes of the turn that was undone last again."""
        note = "The user made the changes that were undone again"
        return self._noted(note, self._session.redo()) or "nothing to redo"

    def _noted(self, note: str, done: str) -> str:
        if done and self._agent is not None:
            self._agent.note(f"{note}: {done}.")
        return done

    def jobs(self) -> Sequence[JobInfo]:
        """The commands that the model left running."""
        return self._kit.running_jobs() if self._kit is not None else ()

    async def stop_job(self, id: str) -> str:
        """End one of them; the model hears of it with the next prompt."""
        if self._kit is None:
            raise HostError("no session is open")
        stopped = await self._kit.stop_job(id)
        if stopped is None:
            return f"{id} had ended before"
        if self._agent is not None:
            self._agent.note(f"The user ended the background command {stopped.id} ({stopped.command}).")
        return f"ended {stopped.id}"

    def name_session(self, name: str) -> str:
        """Name the open session for lists."""
        return self._session.set_name(name)

    def changes(self) -> Sequence[FileDiff]:
        """What the session's turns changed and was not undone, against the files as they are."""
        return self._session.changes()

    def commands(self) -> Sequence[SlashCommand]:
        """The commands that the person and the project wrote as Markdown files."""
        return [own.command for own in self._own_commands().values()]

    def expand(self, name: str, argument: str) -> str:
        """The prompt that one of these commands makes. Raises HostError when there is none of this name."""
        own = self._own_commands().get(name)
        if own is None:
            raise HostError(no_such_command(name, self.commands()))
        return own.prompt(argument)

    def expanded(self, prompt: str) -> str:
        """A prompt of a scripted run: the text of such a command when it names one, else itself. Raises HostError for a
        command that there is not, or not there."""
        named = parse_slash(prompt, self.commands())
        if named is None:
            return prompt
        if any(command.name == named[0] for command in COMMANDS):
            raise HostError(f"/{named[0]} is a command of the full screen and the line mode, not of a scripted run")
        return self.expand(*named)

    def _own_commands(self) -> dict[str, OwnCommand]:
        return own_commands(self._setup.places.config, self._setup.cwd)

    def settings(self) -> Sequence[tuple[str, str, str]]:
        """(key, value, where from) of each setting that is not the default."""
        return set_values(self._setup.settings)

    def servers(self) -> str:
        """The MCP servers with their state and tools."""
        return self._kit.describe_servers() if self._kit is not None else ""

    @property
    def problems(self) -> Sequence[str]:
        """What of the settings does not work: rules that speak of no tool, MCP servers that did not start."""
        return tuple(self._kit.problems) if self._kit is not None else ()

    async def repo_map(self) -> str:
        """The repository's map as it now is."""
        return await self._opened_map.shown()

    def may_read(self, path: Path) -> bool:
        """May this file be shown to the model without asking?"""
        return self._kit is not None and self._kit.policy.may_read(path)

    def notices(self) -> Sequence[str]:
        """What the person should know before the first prompt."""
        warning = self.sandbox_warning()
        return (*self._setup.settings.ignored, *self.problems, *([warning] if warning else []))

    def attach(self, source: str, text: str) -> bool:
        """Add text that goes with the next prompt; False when it had to be cut to fit the model's context."""
        return self._agent is None or self._agent.attach(source, text)

    def sessions(self) -> Sequence[SessionInfo]:
        """Stored sessions of this folder in which something was said, newest first."""
        return self._session.stored()

    def models(self) -> Sequence[str]:
        """Models that `use_model` can open now."""
        return models_to_choose(self._setup.settings)

    async def use_model(self, name: str, on_progress: OnProgress) -> Agent:
        """Go on with this conversation on another model; the present one stays when that fails."""
        settings = set_value(self._setup.settings, "model", name, "/model")
        try:
            model = await self._open_model(settings, self._setup.places, on_progress)
        except EngineError as error:
            raise HostError(f"cannot use {name}: {error}") from error
        old, self._model = self._model, model
        self._setup = replace(self._setup, settings=settings)
        if old is not None:
            await old.aclose()
        self._session.history = list(self._session.events())
        return self._new_agent()

    async def first_look(self) -> FirstLook | None:
        """What to show before the first start."""
        from pointcode_local.found import first_look

        return await asyncio.to_thread(first_look, self._setup.settings, self._setup.places)

    def note_first_look_seen(self) -> None:
        """The person went on from it."""
        from pointcode_local.found import note_seen

        note_seen(self._setup.places)

    def engine(self) -> EngineView | None:
        """The engine at this moment."""
        return self._watch.view(self._model)

    def last_trace(self) -> Timeline | None:
        """The last step that `pointcode bench decode --trace` drew."""
        return last_trace(self._setup.places.state)

    async def measure_memory(self) -> None:
        """Find out what the memory gives."""
        await self._watch.measure(self._model)

    async def close(self) -> None:
        """Stop what still runs, free the model, close the log. Safe to call twice."""
        if self._agent is not None:
            self._agent.cancel()
        if self._map is not None:
            await self._map.close()
        if self._kit is not None:
            await self._kit.close()
        if self._model is not None:
            with contextlib.suppress(EngineError):
                await self._model.aclose()
        self._session.close()
        self._agent = self._kit = self._model = self._map = None

    def sandbox_warning(self) -> str:
        """What to tell the person when commands may run unconfined in mode auto; "" when there is nothing to tell."""
        return self._kit.sandbox_warning() if self._kit is not None else ""
