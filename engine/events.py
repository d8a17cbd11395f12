"""What the supervisor tells: each event reads as a line for a human."""

from dataclasses import dataclass

from engine.diagnosis.sign import Diagnosis
from engine.phases import Progress


@dataclass(frozen=True, slots=True)
class Launched:
    """The program's process was started, for the `attempt`-th time since it last ran well."""

    program: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.program}: starting" + (f" (attempt {self.attempt})" if self.attempt > 1 else "")


@dataclass(frozen=True, slots=True)
class Progressed:
    """Its start has come further.

    Attributes:
        program: Whose.
        progress: How far.
        takes: Seconds that this phase took the last time; None where it goes on, or that is not known.
        left: Seconds from here until it was ready the last time; None likewise.
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
    """It printed this."""

    program: str
    text: str

    def __str__(self) -> str:
        return f"{self.program} | {self.text}"


@dataclass(frozen=True, slots=True)
class BecameReady:
    """It answers its readiness probe, so many seconds after its launch."""

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
    """It did not fit into memory, and is started again with less."""

    program: str
    attempt: int
    most: int
    why: str

    def __str__(self) -> str:
        return f"{self.program}: starting with less (try {self.attempt} of {self.most}): {self.why}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Something that nobody gave was chosen for it."""

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
    """It will be started again in so many seconds."""

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
    """It did not become ready, or did not end, in time, and was killed with all its children."""

    program: str

    def __str__(self) -> str:
        return f"{self.program}: took too long, killed"


@dataclass(frozen=True, slots=True)
class Stopped:
    """It has ended, as it was asked to."""

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
