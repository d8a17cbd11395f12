"""The supervisor's events. Each reads as a line for a human."""

from dataclasses import dataclass

from engine.diagnosis.sign import Diagnosis
from engine.phases import Progress


@dataclass(frozen=True, slots=True)
class Launched:
    """The program's process was started. `attempt` counts starts since it last ran well."""

    program: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.program}: starting" + (f" (attempt {self.attempt})" if self.attempt > 1 else "")


@dataclass(frozen=True, slots=True)
class Progressed:
    """Its start has come further.

    Attributes:
        program: Its name.
        progress: How far.
        takes: Seconds this phase took last time; None if the phase has not just begun, or if unknown.
        left: Seconds from here to ready last time; None likewise.
    """

    program: str
    progress: Progress
    takes: float | None = None
    left: float | None = None

    def __str__(self) -> str:
        takes = None if self.takes is None else f"about {self.takes:.0f} s"
        left = None if self.left is None else f"ready in about {self.left:.0f} s"
        known = "; ".join(filter(None, (takes, left)))
        return f"{self.program}: {self.progress}" + (f" ({known})" if known else "")


@dataclass(frozen=True, slots=True)
class LinePrinted:
    """It printed a line."""

    program: str
    text: str

    def __str__(self) -> str:
        return f"{self.program} | {self.text}"


@dataclass(frozen=True, slots=True)
class BecameReady:
    """It answered its readiness probe, this many seconds after its launch."""

    program: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.program}: ready after {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Crashed:
    """It ended without being asked to."""

    program: str
    diagnosis: Diagnosis

    def __str__(self) -> str:
        return f"{self.program}: ended. {self.diagnosis}"


@dataclass(frozen=True, slots=True)
class Refitted:
    """It did not fit into memory. Its next start asks for less."""

    program: str
    attempt: int
    most: int
    why: str

    def __str__(self) -> str:
        return f"{self.program}: starting with less (try {self.attempt} of {self.most}): {self.why}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """kvgate chose something that its user did not set."""

    program: str
    choice: str

    def __str__(self) -> str:
        return f"{self.program}: {self.choice}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Its start waits for something."""

    program: str
    reason: str

    def __str__(self) -> str:
        return f"{self.program}: waiting: {self.reason}"


@dataclass(frozen=True, slots=True)
class Retrying:
    """It will be started again in this many seconds."""

    program: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.program}: starting again in {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class GaveUp:
    """It will not be started again."""

    program: str
    diagnosis: Diagnosis

    def __str__(self) -> str:
        return f"{self.program}: given up"


@dataclass(frozen=True, slots=True)
class Stopping:
    """It was asked to end."""

    program: str

    def __str__(self) -> str:
        return f"{self.program}: stopping"


@dataclass(frozen=True, slots=True)
class Overdue:
    """It was not ready, or had not ended, in time. It was killed with all its children."""

    program: str

    def __str__(self) -> str:
        return f"{self.program}: took too long, killed"


@dataclass(frozen=True, slots=True)
class Stopped:
    """It ended as asked."""

    program: str

    def __str__(self) -> str:
        return f"{self.program}: stopped"


SupervisorEvent = (
    Launched
    | Chosen
    | Waiting
    | Progressed
    | LinePrinted
    | BecameReady
    | Crashed
    | Refitted
    | Retrying
    | GaveUp
    | Stopping
    | Overdue
    | Stopped
)
