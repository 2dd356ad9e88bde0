"""What `inferometer study run` does: plans, runs what has no record yet, and makes tables and page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from inferometer.bench.conduct.conductor import BudgetSpentError, Conduct, Conductor
from inferometer.bench.machine.foreign import foreign
from inferometer.bench.machine.place import Place, find_place
from inferometer.bench.plan.edge_search import EdgeSearch, edge_part, edge_searches
from inferometer.bench.plan.plan import Planned, plan
from inferometer.bench.plan.question import questions
from inferometer.bench.records.record import Record
from inferometer.bench.records.session import Session
from inferometer.bench.study.folder import StudyFolder, key_of, latest
from inferometer.bench.study.library import find_study
from inferometer.bench.study.study import Settings, Study
from inferometer.cli.streams import tell
from inferometer.cli.study_forecast import forecast_json, forecast_table
from inferometer.cli.study_run import FOLDER
from inferometer.cli.study_twins import SAME_RUN, Twins, Work, standing_for, work_of
from inferometer.hardware.detect import detect

FAILED, CASES_FAILED = 1, 3


def carry_out(arguments: argparse.Namespace) -> int:
    """Runs the study, or prints its plan: exit code 0, 3 if any case ended oom, error or timeout, or 1 if the records could not be kept."""
    file = find_study(arguments.study)
    overrides = _overrides(arguments)
    study, document = file.study(arguments.scale, overrides), file.resolved(arguments.scale, overrides)
    machine = detect()

    @cache
    def place_of(device: str) -> Place:
        return find_place(device, machine)

    plans = plan(study, place_of, arguments.only)
    # Of parts that are not asked for as well: a folder may have their records.
    twins = Twins(questions(study, place_of) if arguments.only else [planned.question for planned in plans])
    if arguments.dry_run:
        _print_plan(plans, twins.same_run_as(plans), as_json=arguments.json)
        return 0
    for place in {planned.question.place.torch_name: planned.question.place for planned in plans}.values():
        held = foreign(place, machine)
        if held is not None:
            tell(held)
    session = Session.begin(machine)
    path = arguments.folder or FOLDER / study.name
    with StudyFolder(path, document, session, resume=arguments.resume, say=tell) as folder:
        work = _Work(study, plans, twins, folder)
        conduct = Conduct(isolate=arguments.isolate, budget_s=None if arguments.budget_minutes is None else 60 * arguments.budget_minutes)
        with Conductor(session, conduct, work.take, study=study.name, oomed=work.oomed) as conductor:
            failure = work.run(conductor, find_edge=arguments.find_edge)
        records = work.answers()
        if failure is not None:
            tell(failure)
            return FAILED
        from inferometer.cli.study_output import write_documents
        from inferometer.report.study.tables import document as tables

        # What earlier runs left of other parts and columns stays in the folder's documents.
        kept = _Work(study, plan(study, place_of), twins, folder).answers() if arguments.only else records
        try:
            text = write_documents(study, kept, folder)
        except OSError as error:
            text = tables(study, kept)
            failure = f"error: {folder.path}: {error.strerror}; all records are in it; make room, and --resume writes what is made of them"
    if arguments.json:
        json.dump({"records": [record.to_json() for record in records]}, sys.stdout, allow_nan=False)
        print()
    else:
        print(text, end="")
    if failure is not None:
        sys.stdout.flush()
        tell(failure)
        return FAILED
    return CASES_FAILED if any(record.status in ("oom", "error", "timeout") for record in records) else 0


def _overrides(arguments: argparse.Namespace) -> Settings:
    given = {
        "runs": arguments.runs,
        "device": arguments.device,
        "gpu_memory": arguments.gpu_memory,
        "timeout_s": arguments.timeout_seconds,
        "energy": False if arguments.no_energy else None,
        "tuning_seconds": arguments.tuning_seconds,
    }
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done for a study in its folder."""

    study: Study
    plans: Sequence[Planned]
    twins: Twins
    folder: StudyFolder

    def take(self, record: Record) -> None:
        """Keeps a record, also as that of each twin that is asked and has none, and tells of it."""
        self._keep(record)
        left = {planned.question.key for planned in self._left()}
        for part, *rest in self.twins.of(key_of(record)):
            if (part, *rest) in left:
                self._keep(standing_for(record, part))

    def oomed(self) -> set[tuple[str, str]]:
        """Columns of parts of which a case ran out of memory, or is answered by one that did."""
        return {(r.part, r.column) for r in self.folder.records if r.status == "oom" and r.part is not None and r.column is not None}

    def run(self, conductor: Conductor, *, find_edge: bool) -> str | None:
        """Runs what has no record yet. Returns why it had to stop, None if it came to its end or to that of its budget."""
        searches = edge_searches(self.plans, []) if find_edge else []
        try:
            self._answer_twins()
            left = self._left()
            earlier = len(self.plans) - len(left)
            if earlier:
                tell(f"{earlier} of {len(self.plans)} cases have their records in {self.folder.path}")
            alone = [planned for planned, part in zip(left, self.twins.same_run_as(left), strict=True) if part is None]
            conductor.run(alone, later=[search.base for search in searches])
            self._find_edges(conductor, searches)
        except BudgetSpentError:
            tell(f"--budget-minutes is spent with {len(self._left())} cases left; run the same command with --resume to go on")
        except OSError as error:
            return f"error: {self.folder.path}: {error.strerror}; {len(self.folder.records)} records are in it; go on with --resume"
        return None

    def answers(self) -> list[Record]:
        """The latest record of each of the cases, in the study's order, and after them those of searches for an edge."""
        found = latest(self.folder.records)
        keys = [planned.question.key for planned in self.plans]
        edges = {edge_part(part.name) for part in self.study.parts}
        return [found[key] for key in keys if key in found] + [record for record in found.values() if record.part in edges]

    def _keep(self, record: Record) -> None:
        """What was skipped before, and is again for the same reason, is known."""
        before = latest(self.folder.records).get(key_of(record))
        if before is None or record.status != "skipped" or before.evidence != record.evidence:
            self.folder.append(record)
        tell(_line(record, len(self._done()), len(self.plans)))

    def _answer_twins(self) -> None:
        """Gives each case without a record that of a twin, if the folder has one: of a run of one part, or of one that was broken off."""
        found = latest(self.folder.records)
        for planned in self._left():
            answers = (found[key] for key in self.twins.of(planned.question.key) if key in found)
            # Twins are refused alike: what was skipped for a reason that has gone is asked again.
            known = next((record for record in answers if record.status != "skipped" or planned.question.refusal is not None), None)
            if known is not None:
                self.folder.append(standing_for(known, planned.question.cell.part))

    def _find_edges(self, conductor: Conductor, searches: Sequence[EdgeSearch]) -> None:
        """Searches of several parts come to the same cases: whichever comes first runs one for all."""
        tried: dict[Work, Record] = {}
        for position, search in enumerate(searches):
            for record in latest(self.folder.records).values():
                search.observe(record)
            while (planned := search.next()) is not None:
                work = work_of(planned.question)
                if work in tried:
                    self._keep(standing_for(tried[work], planned.question.cell.part))
                else:
                    before = len(self.folder.records)
                    conductor.run([planned], later=[other.base for other in searches[position:]])
                    tried[work] = self.folder.records[before]
                search.observe(standing_for(tried[work], planned.question.cell.part))
            tell(f"{search.base.question.cell.part}, {search.base.question.cell.column}: {search.result}")

    def _done(self) -> set[object]:
        """Questions with a record. One that was skipped for a reason which has gone is asked again."""
        found = latest(self.folder.records)
        askable = {planned.question.key for planned in self.plans if planned.question.refusal is None}
        wanted = {planned.question.key for planned in self.plans}
        return {key for key, record in found.items() if key in wanted and not (record.status == "skipped" and key in askable)}

    def _left(self) -> list[Planned]:
        done = self._done()
        return [planned for planned in self.plans if planned.question.key not in done]


def _line(record: Record, number: int, total: int) -> str:
    """A case's end in one line."""
    where = f"{record.part}, {record.column}, {record.model}, batch {record.batch_size}, prompt {record.sequence_length}"
    if record.decode_length is not None:
        where += f", {record.decode_length} new"
    time = record.forward_ms or record.total_ms or record.decode_token_ms
    outcome = record.status if record.evidence is None else f"{record.status}: {record.evidence}"
    if SAME_RUN in record.environment:
        where += f" (the same run as in {record.environment[SAME_RUN]})"
    return f"[{number}/{total}] {where}: {outcome}" + ("" if time is None else f", {time.p50:.2f} ms")


def _print_plan(plans: Sequence[Planned], same_run_as: Sequence[str | None], *, as_json: bool) -> None:
    if as_json:
        cases = [forecast_json(planned, part) for planned, part in zip(plans, same_run_as, strict=True)]
        json.dump({"cases": cases}, sys.stdout, allow_nan=False, indent=2)
        print()
    else:
        print(forecast_table(plans, same_run_as))
