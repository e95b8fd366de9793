#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""That examples/cluster starts runs, without a cluster:

    tests/examples/cluster_check.py slurm PROGRAM         # train.sbatch, with a srun and a scontrol of its own
    tests/examples/cluster_check.py kubernetes PROGRAM    # train.yaml, its fields, and its command for two pods

PROGRAM is 01_train_gpt. Two processes train a few steps, are stopped by SIGTERM with a checkpoint, and go on.
What needs a tool that is not installed (shellcheck, PyYAML) is left out; exit status 77: nothing was checked.
"""
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLURM = os.path.join(ROOT, "examples/cluster/train.sbatch")
KUBERNETES = os.path.join(ROOT, "examples/cluster/train.yaml")
MODEL = ["--layers", "1", "--heads", "2", "--dim", "32", "--block", "32", "--batch", "4", "--sample", "0"]

# A srun for one machine: takes options off until the program, then starts SLURM_NTASKS processes. What the real one
# does beyond that is not checked.
SRUN = """#!/usr/bin/env bash
while [[ "$1" == -* ]]; do
  [[ "$1" == --*=* ]] || { echo "srun: write $1 with =" >&2; exit 9; }
  shift
done
tasks=()
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
  tasks+=($!)
done
echo "${tasks[@]}" >"$FAKE/tasks"
status=0
for task in "${tasks[@]}"; do
  code=0
  wait "$task" || code=$?
  ((code <= status)) || status=$code
done
exit $status
"""
SCONTROL = """#!/usr/bin/env bash
case "$1" in
  show) printf '%s\\n' localhost node2 ;;
  requeue) echo "$2" >>"$FAKE/requeued" ;;
  *) exit 9 ;;
esac
"""


def fail(text):
    sys.exit(f"cluster_check: {text}")


def expect(condition, text):
    if not condition:
        fail(text)


def free_port(ports=range(20000, 60000)):
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.choice(ports)))
                return probe.getsockname()[1]
            except OSError:
                pass


def write_script(path, text):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


def wait_for_steps(out, num, process, log):
    """Until the run has written so many steps."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with open(os.path.join(out, "metrics.jsonl")) as file:
                if sum(1 for _ in file) >= num:
                    return
        except FileNotFoundError:
            pass
        expect(process.poll() is None, f"ended with {process.returncode} before step {num}:\n{open(log).read()}")
        time.sleep(0.05)
    fail(f"no step {num} within a minute:\n{open(log).read()}")


def slurm(program, work):
    if shutil.which("shellcheck"):
        expect(subprocess.run(["shellcheck", SLURM]).returncode == 0, "shellcheck finds faults in train.sbatch")
    else:
        print("cluster_check: shellcheck is not installed: left out")
    with open(SLURM) as file:
        lines = file.read().splitlines()
    # sbatch reads these lines up to the first command only.
    options, seen_command = {}, False
    for line in lines[1:]:
        if line.startswith("#SBATCH"):
            expect(not seen_command, f"sbatch does not read `{line}`, which follows a command")
            found = re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line)
            expect(found, f"`{line}` is not --NAME or --NAME=VALUE")
            options[found[1]] = found[2]
        elif line.strip() and not line.startswith("#"):
            seen_command = True
    known = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "signal", "requeue", "open-mode"}
    expect(set(options) == known, f"the options are {sorted(options)}, not {sorted(known)}")
    # To the tasks; with B: it would go to this script only, and the ranks would get SIGKILL.
    expect(re.fullmatch(r"TERM@\d+", options["signal"]), "--signal must send TERM to the tasks")

    fake = os.path.join(work, "fake")
    os.makedirs(fake)
    write_script(os.path.join(fake, "srun"), SRUN)
    write_script(os.path.join(fake, "scontrol"), SCONTROL)
    out = os.path.join(work, "out")
    environment = {
        **os.environ, "PATH": fake + ":" + os.environ["PATH"], "FAKE": fake, "PROGRAM": program, "OUT": out,
        "SLURM_JOB_ID": str(4000000 + free_port(range(20000, 30000)) - 20000), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NTASKS": "2",
        "SLURM_CPUS_PER_TASK": "1", "SLURM_STEP_NUM_TASKS": "2"
    }

    def start(*arguments):
        log = os.path.join(work, "log")
        return log, subprocess.Popen(["bash", SLURM, *MODEL, *arguments], env=environment, cwd=work,
                                     stdout=open(log, "w"), stderr=subprocess.STDOUT)

    log, job = start("--steps", "100000")
    wait_for_steps(out, 3, job, log)
    with open(os.path.join(fake, "tasks")) as file:
        for task in file.read().split():
            os.kill(int(task), signal.SIGTERM)
    job.send_signal(signal.SIGTERM)  # the script outlives it
    status = job.wait(60)
    text = open(log).read()
    expect(status == 143, f"SIGTERM: exit status {status}, not 143:\n{text}")
    expect("2 ranks of 1 thread" in text, f"there are no two ranks of one thread:\n{text}")
    expect("stopped with a checkpoint" in text, f"SIGTERM: no word of a checkpoint:\n{text}")
    requeued = open(os.path.join(fake, "requeued")).read().split()
    expect(requeued == [environment["SLURM_JOB_ID"]], f"requeued: {requeued}")

    steps = sum(1 for _ in open(os.path.join(out, "metrics.jsonl"))) + 3
    log, job = start("--steps", str(steps))
    status = job.wait(60)
    text = open(log).read()
    expect("resumed from" in text, f"the second start did not resume (exit status {status}):\n{text}")
    expect(status == 0 and "trained" in text, f"the second start: exit status {status}:\n{text}")

    log, job = start("--no-such-flag")
    status = job.wait(60)
    expect(status == 2 and "see the message above" in open(log).read(), f"a wrong flag: exit status {status}")
    requeued = open(os.path.join(fake, "requeued")).read().split()
    expect(len(requeued) == 1, "an error in the command line must not be started again")


def kubernetes(program, work):
    try:
        import yaml
    except ImportError:
        print("cluster_check: PyYAML is not installed (Debian: python3-yaml)")
        sys.exit(77)
    with open(KUBERNETES) as file:
        objects = {one["kind"]: one for one in yaml.safe_load_all(file)}
    expect(set(objects) == {"Service", "PersistentVolumeClaim", "Job"}, f"the kinds are {sorted(objects)}")
    service, claim, job = objects["Service"], objects["PersistentVolumeClaim"], objects["Job"]
    spec = job["spec"]
    pod = spec["template"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    name = job["metadata"]["name"]

    # A name of pod 0, as DNS has it: <job>-0.<subdomain>, if a headless Service of that name selects the pod.
    expect(service["spec"]["clusterIP"] == "None", "the Service must be headless")
    expect(service["spec"]["publishNotReadyAddresses"] is True, "the names must exist before the pods are ready")
    expect(service["spec"]["selector"].items() <= labels.items(), "the Service does not select the pods")
    expect(pod["subdomain"] == service["metadata"]["name"], "subdomain is not the Service's name")
    affinity = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    expect(affinity["labelSelector"]["matchLabels"].items() <= labels.items(), "the affinity is not of the pods")
    expect(affinity["topologyKey"] == "kubernetes.io/hostname", "one pod per node needs kubernetes.io/hostname")
    variables = {one["name"]: one for one in container["env"]}
    host, port = variables["APOGEE_ADDRESS"]["value"].split(":")
    expect(host == f"{name}-0.{pod['subdomain']}", f"{host} is not the name of pod 0")
    expect(int(port) == service["spec"]["ports"][0]["port"], "the port is not the Service's")

    # Numbers that belong together.
    pods, ranks = spec["completions"], int(variables["RANKS_PER_POD"]["value"])
    expect(spec["completionMode"] == "Indexed", "INDEX needs an Indexed Job")
    expect(spec["parallelism"] == pods == int(variables["PODS"]["value"]), "parallelism, completions and PODS differ")
    cores = int(container["resources"]["requests"]["cpu"])
    expect(int(variables["THREADS"]["value"]) == pods * cores, "THREADS is not the cores of all pods")
    expect(int(variables["THREADS"]["value"]) % (pods * ranks) == 0, "THREADS does not divide among the ranks")
    fields = {one: variables[one]["valueFrom"]["fieldRef"]["fieldPath"] for one in ("INDEX",)}
    expect(fields["INDEX"] == "metadata.annotations['batch.kubernetes.io/job-completion-index']", f"INDEX: {fields}")
    expect(set(variables["APOGEE_JOB_TOKEN"]["valueFrom"]) == {"secretKeyRef"}, "the token must be a Secret")

    # Restarts: a podFailurePolicy is for restartPolicy Never only; the rules are read in order.
    expect(pod["restartPolicy"] == "Never", "podFailurePolicy needs restartPolicy Never")
    rules = spec["podFailurePolicy"]["rules"]
    codes = {code: rule["action"] for rule in rules if "onExitCodes" in rule for code in rule["onExitCodes"]["values"]}
    expect(codes == {1: "FailJob", 2: "FailJob", 130: "Ignore", 143: "Ignore"}, f"exit codes: {codes}")
    for rule in rules:
        if "onExitCodes" in rule:
            expect(rule["onExitCodes"]["containerName"] == container["name"], "a rule is of another container")
    expect(pod["terminationGracePeriodSeconds"] >= 60, "too little time for a checkpoint")
    expect(pod["securityContext"]["runAsNonRoot"] is True, "the pod must not run as root")
    with open(os.path.join(ROOT, "packaging/docker/Dockerfile.cpu")) as file:
        uid = re.search(r"useradd .*--uid (\d+)", file.read())
    expect(uid and int(uid[1]) == pod["securityContext"]["runAsUser"], "runAsUser is not the image's user")

    # The volume.
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    expect(mount["name"] == volume["name"], "the mounted volume is not declared")
    expect(volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"], "the claim is not declared")
    expect(claim["spec"]["accessModes"] == ["ReadWriteMany"], "ranks of several nodes write")
    (out,) = [one for one in container["args"] if one.startswith("--out=")]
    expect(out[len("--out="):].startswith(mount["mountPath"] + "/"), f"{out} is not in {mount['mountPath']}")

    # The flags exist.
    flags = set(re.findall(r"--[a-z][a-z-]*", subprocess.run([program, "--help"], capture_output=True, text=True).stdout))
    for one in container["args"][2:]:
        if one.startswith("--"):
            expect(one.split("=")[0] in flags, f"the program has no flag {one}")

    # Its command, as two pods of one rank each, with a small model.
    expect(container["command"] == ["/bin/bash", "-c"], f"the command is {container['command']}")
    folder = os.path.join(work, "bin")
    os.makedirs(folder)
    os.symlink(program, os.path.join(folder, "01_train_gpt"))
    run = os.path.join(work, "run")

    def start(steps, log):
        address = f"localhost:{free_port()}"
        processes = []
        for index in range(2):
            environment = {**os.environ, "PATH": folder + ":" + os.environ["PATH"], "INDEX": str(index), "PODS": "2",
                           "RANKS_PER_POD": "1", "THREADS": "2", "APOGEE_ADDRESS": address,
                           "APOGEE_CONNECT_TIMEOUT": "60", "APOGEE_JOB_TOKEN": "a token of this test"}
            expect(set(variables) <= set(environment), "a variable of the manifest is not set here")
            # Kubernetes replaces $(NAME); a repeated flag is an error of the program.
            arguments = [re.sub(r"\$\(([A-Z_]+)\)", lambda found: environment[found[1]], one)
                         for one in container["args"]]
            arguments = [one for one in arguments if not one.startswith(("--batch", "--out="))]
            arguments += ["--out=" + run, *MODEL, "--steps", str(steps)]
            processes.append(subprocess.Popen(["bash", "-c", *arguments], env=environment, cwd=work,
                                              stdout=open(log, "a"), stderr=subprocess.STDOUT))
        return processes

    log = os.path.join(work, "log")
    processes = start(100000, log)
    wait_for_steps(run, 3, processes[0], log)
    processes[1].send_signal(signal.SIGTERM)  # one node is drained: both pods stop with a checkpoint
    codes = [process.wait(60) for process in processes]
    expect(codes == [143, 143], f"SIGTERM to one pod: exit codes {codes}:\n{open(log).read()}")
    steps = sum(1 for _ in open(os.path.join(run, "metrics.jsonl"))) + 3
    codes = [process.wait(60) for process in start(steps, log)]
    text = open(log).read()
    expect(codes == [0, 0] and "resumed from" in text, f"the second start: exit codes {codes}:\n{text}")


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("slurm", "kubernetes"):
        sys.exit(__doc__)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    with tempfile.TemporaryDirectory() as work:
        {"slurm": slurm, "kubernetes": kubernetes}[sys.argv[1]](os.path.abspath(sys.argv[2]), work)
    print(f"cluster_check: {sys.argv[1]} good")


if __name__ == "__main__":
    main()
