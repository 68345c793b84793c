#!/usr/bin/env python3
"""Text of models that were trained: `tessera generate`, and the Generate call of a service.

generate_test.py --bin DIR --assets DIR
"""

import argparse
import os
import pathlib
import signal
import subprocess

import transformers
from cluster import DEADLINE_SECONDS, cluster, expect, run_job, wait_until
from jobs import sft_job

PROMPTS = ["The quick brown fox", "Zwölf Boxkämpfer"]
LONG = 1_000_000  # tokens: never made while a test runs


def completions_of(replies):
    """Text, tokens, log-probabilities and the end of each completion, by prompt and completion."""
    found = {}
    for reply in replies:
        ((kind, message),) = reply.items()
        place = message.get("prompt", 0), message.get("completion", 0)
        made = found.setdefault(place, {"text": "", "tokens": [], "logprobs": [], "end": None})
        expect(made["end"] is None, f"{place} goes on after its end: {reply}")
        if kind == "end":
            made["end"] = message
            continue
        made["text"] += message.get("text", "")
        made["tokens"] += message["tokenIds"]
        made["logprobs"] += message["logprobs"]
    return found


def generate(service, *arguments):
    flags = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    flags += ["--max-new-tokens", "12", "--temperature", "0", "--logprobs"]
    return completions_of(service.query("generate", *arguments, *flags))


def expect_refusal(service, message, *arguments):
    done = service.call("generate", *arguments)
    expect(done.returncode == 2, f"generate {arguments} exited with {done.returncode}")
    expect(message in done.stderr, f"generate {arguments} said {done.stderr!r}, not {message!r}")


def test_what_transformers_says(options, service, final):
    """Greedy tokens, prompts, and text are those of transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(final)
    model = transformers.AutoModelForCausalLM.from_pretrained(final).eval()
    made = generate(service, str(final))
    for number, prompt in enumerate(PROMPTS):
        of_prompt = made[number, 0]
        ids = tokenizer(prompt, return_tensors="pt")
        want = model.generate(**ids, max_new_tokens=12, do_sample=False)[0][len(ids.input_ids[0]) :]
        expect(of_prompt["tokens"] == want.tolist(), f"{prompt}: {of_prompt}, not {want}")
        text = tokenizer.decode(want, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        expect(of_prompt["text"] == text, f"{prompt}: {of_prompt['text']!r}, not {text!r}")
        end = of_prompt["end"]
        expect(end["numPromptTokens"] == len(ids.input_ids[0]), f"{prompt}: {end}")
        expect(end["numTokens"] == len(want), f"{prompt}: {end}")
    return made


def test_checkpoints(service, output, made):
    """A checkpoint says what the weights that were exported from it do; so does its directory."""
    for directory in (output / "checkpoint-4", output):
        expect(generate(service, str(directory)) == made, f"{directory} says something else")


def test_adapters(options, service):
    output = service.directory / "adapters"
    job = sft_job(options.assets, output) | {"peft": {"lora_r": 4}}
    code, _, errors = run_job(service, "run", str(service.write_job("adapters", job)))
    expect(code == 0, errors)
    expect((output / "final" / "adapter_config.json").exists(), "no adapters were written")
    made = generate(service, str(output / "final"))
    expect(all(len(one["tokens"]) > 0 for one in made.values()), f"made {made}")
    expect(generate(service, str(output / "checkpoint-4")) == made, "the checkpoint differs")


def test_samples(service, final):
    """A sample is that of its seed; the same prompt has several."""
    flags = ["--prompt", PROMPTS[0], "-n", "3", "--max-new-tokens", "8", "--logprobs"]
    one = completions_of(service.query("generate", str(final), *flags, "--seed", "7"))
    again = completions_of(service.query("generate", str(final), *flags, "--seed", "7"))
    other = completions_of(service.query("generate", str(final), *flags, "--seed", "11"))
    expect(one == again, "the same seed says something else")
    expect(one != other, "another seed says the same")
    expect(len({str(sample["tokens"]) for sample in one.values()}) > 1, f"all are one: {one}")


def test_refusals(options, service, final):
    expect_refusal(service, "give either CHECKPOINT or --job", "--prompt", "x")
    expect_refusal(service, "must be a directory", "/nowhere", "--prompt", "x")
    expect_refusal(service, "no config.json", str(service.directory), "--prompt", "x")
    expect_refusal(service, "sampling.top_p is 3", str(final), "--prompt", "x", "--top-p", "3")
    expect_refusal(service, "has no chat template", str(final), "--prompt", "x", "--chat")
    expect_refusal(service, "prompts[0] has no tokens", str(final), "--prompt", "")


def test_of_a_job(service, job, made):
    """The service makes the same of what a job has left."""
    expect(generate(service, "--job", job) == made, "the service says something else")
    done = service.call("generate", "--job", "nobody", "--prompt", "x")
    expect(done.returncode == 2 and "nobody" in done.stderr, done.stderr)
    done = service.call("generate", "--job", job, "--prompt", "x", "--top-p", "3")
    expect(done.returncode == 2 and "sampling.top_p is 3" in done.stderr, done.stderr)


def test_that_a_client_leaves(service, job):
    """The trainer ends with the call."""
    arguments = ("generate", "--job", job, "--prompt", "x", "--max-new-tokens", str(LONG))
    client = subprocess.Popen(service.command(*arguments), stdout=subprocess.PIPE)
    expect(os.read(client.stdout.fileno(), 1) != b"", "nothing was said")
    expect(service.pids("tessera-trainer"), "no trainer runs")
    client.send_signal(signal.SIGINT)
    expect(client.wait(DEADLINE_SECONDS) == 130, f"the client ended with {client.returncode}")
    client.stdout.close()
    wait_until(lambda: not service.pids("tessera-trainer"), "the trainer to be gone")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with cluster(options.bin) as service, service.up("--cpu-slots", "1"):
        output = service.directory / "output"
        job = service.write_job("job", sft_job(options.assets, output))
        code, _, errors = run_job(service, "run", str(job))
        expect(code == 0, errors)
        final = output / "final"
        made = test_what_transformers_says(options, service, final)
        test_checkpoints(service, output, made)
        test_adapters(options, service)
        test_samples(service, final)
        test_refusals(options, service, final)
        print("ok: tessera generate", flush=True)
        (id_of_job,) = (
            job["id"]
            for job in service.query("list")
            if job["spec"]["training"]["outputDir"] == str(output)
        )
        test_of_a_job(service, id_of_job, made)
        test_that_a_client_leaves(service, id_of_job)
        print("ok: the Generate call", flush=True)


if __name__ == "__main__":
    main()
