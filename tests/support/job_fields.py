"""Fields of a job, a dict as its file has it, by their paths: memory.sharding."""


def set_fields(job, fields):
    """Sets each path to its value, and makes the sections around it. Returns the job."""
    for path, value in fields.items():
        *sections, name = path.split(".")
        place = job
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return job


def remove_field(job, path):
    *sections, name = path.split(".")
    for section in sections:
        job = job[section]
    del job[name]
