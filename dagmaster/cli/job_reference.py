"""Find the job that a user names: by its id, by its first digits, or as `last`."""

from dagmaster.cli.backend import Backend
from dagmaster.errors import Invalid, NotFound
from dagmaster.ids import JobId

LAST = "last"
LONGEST_ID = 19
SHOWN = 4
PAGE = 100


def find_job(backend: Backend, reference: str) -> JobId:
    """Raises NotFound, or Invalid if the reference is ambiguous."""
    word, colon, workflow_id = reference.partition(":")
    if word.lower() == LAST and bool(colon) is bool(workflow_id):
        return _last(backend, workflow_id or None)
    if not (reference.isdecimal() and reference.isascii() and 1 <= len(reference) <= LONGEST_ID and int(reference)):
        raise Invalid(f"{reference!r} is not a job: use a job id, its first digits, `last` or `last:WORKFLOW`")
    job_ids = backend.job_ids(str(int(reference)), limit=SHOWN + 1)
    if (job_id := JobId(int(reference))) in job_ids:
        return job_id
    if not job_ids:
        raise NotFound(f"there is no job {reference}; `dagmaster jobs` lists them")
    if len(job_ids) > 1:
        named = ", ".join(map(str, job_ids[:SHOWN])) + (", ..." if len(job_ids) > SHOWN else "")
        raise Invalid(f"{reference} matches several jobs: {named}")
    return job_ids[0]


def _last(backend: Backend, workflow_id: str | None) -> JobId:
    """The newest job. A child job counts only if there is no other, or if its workflow is named."""
    jobs = backend.jobs(status=None, workflow_id=workflow_id, limit=PAGE)
    if not jobs:
        raise NotFound(f"workflow {workflow_id!r} has no jobs yet" if workflow_id else "there are no jobs yet")
    own = jobs if workflow_id else [job for job in jobs if job["parent_job_id"] is None]
    return JobId(int((own or jobs)[0]["job_id"]))
