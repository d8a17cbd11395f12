"""The gateways of a deployment, and their successors: one process, or an owner and its fronts."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.control import Say
from engine.diagnosis.sign import Diagnosis
from engine.program import Engine, Role
from engine.supervisor import Supervisor
from gateway.config.errors import ConfigurationError
from gateway.config.reloadable import SettingsChange
from gateway.config.settings import Settings
from gateway.serve.launch import Gateway, agrees, divided, knowing, place_by, telling, unused
from gateway.serve.owner_socket import OwnerSocket
from gateway.serve.rollout import addresses, beside

_PATIENCE = 30.0
"""Seconds a gateway gets to apply other settings. One that does not answer is replaced."""


class FailedError(Exception):
    """A program of the new settings does not run. The text gives the reason."""


class Gateways:
    """They take other settings, or others take over from them.

    Args:
        running: those that run now; the supervisor starts them.
        supervisor: runs them.
        say: gets a line for a human about each step.
        succeeded: called when another process says which engines run.
    """

    def __init__(
        self, running: Sequence[Gateway], supervisor: Supervisor, say: Say, succeeded: Callable[[], None]
    ) -> None:
        self.running = list(running)
        self._known = addresses(self.settings)
        """The addresses of the endpoints that these processes know, and have known."""
        self._supervisor = supervisor
        self._say = say
        self._succeeded = succeeded
        self._answers: dict[str, asyncio.Future[str | None]] = {}
        """By name, a gateway's answer to other settings: what is wrong with them; None if the gateway ended."""
        self._ending: set[str] = set()
        """Names of those that end with their last connection."""
        self._leaving: asyncio.Task[None] | None = None
        """The end of the gateway that was divided. It takes as long as that one's streams."""

    @property
    def settings(self) -> Settings:
        """The settings by which they decide."""
        return self.running[0].settings

    def reach(self, engine: Engine) -> bool:
        """Whether a request of these gateways may be on an engine."""
        return engine.spec.address in self._known

    @property
    def is_owned(self) -> bool:
        """Whether an owner decides, and fronts carry requests."""
        return self.running[0].role is Role.OWNER

    @property
    def voice(self) -> str:
        """The process that says which engines run: the one that decides; in a tier one front, as any may decide."""
        fronts = [gateway for gateway in self.running if gateway.role is Role.GATEWAY]
        return (fronts if self.settings.tier.redis is not None else self.running)[0].name

    def place(self, engine: Engine) -> str:
        """The place of an engine by what the process that decides knows."""
        return place_by(self.running[0], engine)

    def change_to(self, gateways: Sequence[Gateway]) -> SettingsChange | None:
        """The change to these, if the running ones can become these as they serve."""
        old, new = self.running[0], gateways[0]
        change = SettingsChange.between(old.settings, new.settings)
        return None if change.later or old.described != new.described or not agrees(old, new) else change

    async def go_by(self, gateways: Sequence[Gateway]) -> None:
        """Turn the running gateways into these as they serve if that can be; else have these take over.

        Raises:
            FailedError: the settings cannot be used, or one does not start. What ran before runs on.
        """
        if self.change_to(gateways) is not None:
            try:
                await self.become(gateways)
            except ConfigurationError as error:
                raise FailedError(str(error)) from None
            except TimeoutError:
                pass
            else:
                return
        await self.hand_over(gateways)

    async def become(self, changed: Sequence[Gateway]) -> None:
        """Turn the running gateways into these, and keep their names.

        Raises:
            ConfigurationError: the settings cannot be used, and nothing was changed.
            TimeoutError: a gateway does not run, or does not answer.
        """
        coming = [replace(knowing(new, old), name=old.name) for old, new in zip(self.running, changed, strict=True)]
        self._known |= addresses(coming[0].settings)
        told: list[Gateway] = []
        # The owner comes first in the list, and last here: it may send requests only where fronts can reach.
        for old, new in reversed(list(zip(self.running, coming, strict=True))):
            told.append(old)
            wrong = await self._applied(new)
            if wrong:
                for known in told:
                    with contextlib.suppress(TimeoutError):
                        await self._applied(known)
                raise ConfigurationError(wrong)
        self.running = coming

    def answered(self, gateway: str, wrong: str | None) -> None:
        """Take a gateway's answer to other settings: what is wrong with them; None if it ended."""
        answer = self._answers.get(gateway)
        if answer is not None and not answer.done():
            answer.set_result(wrong)

    async def hand_over(self, gateways: Sequence[Gateway]) -> None:
        """Start gateways on the same sockets. When they are ready, the old ones end with their last connections.

        Where an owner decides, the old one ends as soon as the new fronts are ready, and the next one takes over: there
        are never two. Until the old fronts have ended, it knows their endpoints, and they know its: what waits there is
        for either.

        Raises:
            FailedError: one does not start. What ran before runs again.
        """
        before = self.running
        coming = [replace(knowing(new, old), name=self._free(old)) for old, new in zip(before, gateways, strict=True)]
        await self._start([gateway for gateway in coming if gateway.role is Role.GATEWAY])
        failure, owned = None, self.is_owned
        if owned:
            await self._introduce(before, coming)
        self._are(coming)
        async with asyncio.TaskGroup() as leaving:
            for old, new in zip(before, coming, strict=True):
                if old.role is Role.GATEWAY:
                    leaving.create_task(self._follow(old, new))
            if owned:
                failure = await self._succeed(before[0], coming[0])
                if failure is not None:
                    for new, old in await self._return_to(before):
                        leaving.create_task(self._follow(new, old))
            if self._leaving is not None:
                await self._leaving
        if failure is not None:
            raise _not_started(coming[0], failure)
        if owned:
            await self._govern(coming[0], beside(coming[0].settings, before[0].settings))

    async def divide(self, listening: Sequence[socket.socket], owner: OwnerSocket) -> None:
        """Have an owner and a front do what one gateway did until now, on the same sockets. Next they are handed over.

        Raises:
            FailedError: one of them does not start.
        """
        (old,) = self.running
        _, front = coming = divided(old, listening, owner)
        await self._start(coming)
        self._are(coming)
        self._leaving = asyncio.create_task(self._follow(old, front))

    def _free(self, gateway: Gateway) -> str:
        """A name for the successor of a gateway: the two run beside each other for a while."""
        taken = {running.name for running in self.running} | self._ending
        return unused(gateway.name.partition(" #")[0], taken)

    def _are(self, gateways: Sequence[Gateway]) -> None:
        self.running = list(gateways)
        self._known = addresses(self.settings)
        self._succeeded()

    async def _start(self, gateways: Sequence[Gateway]) -> None:
        """Start all of these, or none."""
        for gateway in gateways:
            failure = await self._supervisor.add(gateway)
            if failure is not None:
                for started in gateways[: gateways.index(gateway)]:
                    await self._supervisor.remove(started.name)
                raise _not_started(gateway, failure)

    async def _follow(self, old: Gateway, new: Gateway) -> None:
        """End a gateway whose connections another one takes from now on."""
        self._say(f"{new.name}: takes over from {old.name}, which ends with its last connection")
        self._ending.add(old.name)
        await self._supervisor.remove(old.name, by=signal.SIGUSR1)
        self._ending.discard(old.name)

    async def _introduce(self, before: Sequence[Gateway], coming: Sequence[Gateway]) -> None:
        """Have the fronts of before reach the endpoints to come, too."""
        for old, new in zip(before, coming, strict=True):
            if old.role is Role.GATEWAY:
                await self._govern(telling(old, beside(old.settings, new.settings)), old.settings)

    async def _govern(self, gateway: Gateway, known: Settings) -> None:
        """Have a running gateway go by its settings, if it knows others. One that does not answer is about to end."""
        if gateway.settings != known:
            with contextlib.suppress(TimeoutError):
                await self._applied(gateway)

    async def _succeed(self, old: Gateway, new: Gateway) -> Diagnosis | None:
        """End an owner and start the next, or launch the same if that one does not start; return why it does not."""
        self._say(f"{new.name}: takes over from {old.name}")
        await self._supervisor.remove(old.name, by=signal.SIGUSR1)
        failure = await self._supervisor.add(knowing(telling(new, beside(new.settings, old.settings)), old))
        if failure is not None:
            self._are([old, *self.running[1:]])
            self._supervisor.launch(old)
        return failure

    async def _return_to(self, before: Sequence[Gateway]) -> list[tuple[Gateway, Gateway]]:
        """Start the fronts of before again, for the ones that have just taken over; return the pairs, new ones first.

        Until they are ready, those reach the endpoints of before.
        """
        fronts = self.running[1:]
        await self._introduce(self.running, before)
        again = [replace(old, name=self._free(old)) for old in before[1:]]
        with contextlib.suppress(FailedError):  # then the others stay
            await self._start(again)
            self._are([before[0], *again])
            return list(zip(fronts, again, strict=True))
        return []

    async def _applied(self, gateway: Gateway) -> str | None:
        """Have a running gateway become this one; return what is wrong with its settings.

        Raises:
            TimeoutError: it does not run, or does not answer.
        """
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._answers[gateway.name] = answer
        try:
            if not self._supervisor.become(gateway.name, gateway, gateway.stdin or b""):
                raise TimeoutError
            async with asyncio.timeout(_PATIENCE):
                return await answer
        finally:
            del self._answers[gateway.name]


def _not_started(gateway: Gateway, why: Diagnosis) -> FailedError:
    return FailedError(f"The new {gateway.name} does not start. {why}")
