// SPDX-License-Identifier: Apache-2.0

// The parts of `apogee doctor`: what is shown of an environment, limits, versions, child processes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/process_table.h"
#include "apogee/tools/doctor/child.h"
#include "apogee/tools/doctor/environment.h"
#include "apogee/tools/doctor/launcher.h"
#include "apogee/tools/doctor/limits.h"
#include "apogee/tools/doctor/machine.h"
#include "apogee/tools/doctor/self_test.h"

namespace apogee::tools::doctor {
namespace doctor_test {

using ::apogee::testing::NumProcessesWith;
using ::apogee::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RedactorTest, NamesAndAddresses) {
  const Redactor redactor("/home/ada/", "ada", "turing");
  for (const auto& [text, clean] : std::vector<std::pair<std::string, std::string>>{
           {"/home/ada/run", "~/run"},
           {"/home/ada", "~"},
           {"/home/adam/run", "/home/adam/run"},
           {"/scratch/ada/x", "/scratch/<user>/x"},
           {"[turing:123] adapter", "[<host>:123] adapter"},
           {"turing turing2", "<host> turing2"},
           {"to 10.0.0.17 port 7", "to <address> port 7"},
           {"fe80::1ff:fe23:4567:890a", "<address>"},
           {"2001:db8:0:1:2:3:4:5", "<address>"},
           {"12:34:56 version 4.1.4", "12:34:56 version 4.1.4"},
           {"https://ada:hunter2@proxy", "https://<password>@proxy"},
           {"a\tb\x1b[31m\n", "a?b?[31m?"},
           {"", ""}}) {
    EXPECT_EQ(redactor.Clean(text), clean);
  }
  EXPECT_EQ(Redactor("/", "root", "").Clean("/x --allow-run-as-root"), "/x --allow-run-as-root");
}

TEST(DoctorEnvironmentTest, ShowsWhatMattersAndNoSecret) {
  const char* variables[] = {"OMP_NUM_THREADS=3",
                             "OMPI_MCA_btl=tcp,self",
                             "SLURM_NNODES=2",
                             "LD_PRELOAD=/home/ada/x.so",
                             "AWS_SECRET_ACCESS_KEY=hunter2",
                             "HF_TOKEN=hunter2",
                             "PATH=/usr/bin",
                             "SLURM_JWT=hunter2",
                             "NCCL_some_secret=hunter2",
                             "OMPI_MCA_orte_precondition_transports=hunter2-1",
                             "SLURM_JOB_NODELIST=hunter2",
                             "OMPX_NUM=hunter2",
                             "NCCL_EMPTY",
                             nullptr};
  Report report(Redactor("/home/ada", "ada", "turing"));
  AddEnvironment(variables, report);
  const std::string text = report.Text();
  EXPECT_THAT(text, HasSubstr("\n  OMP_NUM_THREADS     3\n"));
  EXPECT_THAT(text, HasSubstr("\n  OMPI_MCA_btl        tcp,self\n"));
  EXPECT_THAT(text, HasSubstr("\n  SLURM_NNODES        2\n"));
  EXPECT_THAT(text, HasSubstr("\n  LD_PRELOAD          ~/x.so\n"));
  EXPECT_THAT(text, HasSubstr("\n  SLURM_JWT           (set, not shown)\n"));
  EXPECT_THAT(text, HasSubstr("\n! LD_PRELOAD is set: "));
  for (const char* absent : {"hunter2", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PATH ", "OMPX"}) {
    EXPECT_THAT(text, Not(HasSubstr(absent)));
  }
}

TEST(LauncherTest, Versions) {
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"mpirun (Open MPI) 4.1.4\n\nReport bugs to ...", "Open MPI 4.1.4"},
           {"mpiexec (OpenRTE) 2.1.1", "Open MPI 2.1.1"},
           {"Open MPI v5.0.3rc1, package: Open MPI ada@turing Distribution", "Open MPI 5.0.3"},
           {"HYDRA build details:\n    Version:              4.0.2\n", "MPICH 4.0.2"},
           {"MPICH Version:      4.0.2\nMPICH Release date: Thu Apr  7", "MPICH 4.0.2"},
           {"MVAPICH2 Version :  2.3.7", "MVAPICH 2.3.7"},
           {"Intel(R) MPI Library for Linux* OS, Version 2021.8 Build 2022", "Intel MPI 2021.8"},
           {"", "unknown"},
           {"bash: 1.2.3", "unknown"}}) {
    EXPECT_EQ(ParseMpi(text).ToString(), expected);
  }
  EXPECT_TRUE(Fits({"Open MPI", "4.1.4"}, {"Open MPI", "5.0.0"}));
  EXPECT_TRUE(Fits({"MPICH", "4.0"}, {"Intel MPI", "2021.8"}));
  EXPECT_TRUE(Fits({"", ""}, {"Open MPI", "5.0.0"}));
  EXPECT_FALSE(Fits({"MPICH", "4.0"}, {"Open MPI", "4.1.4"}));
  EXPECT_FALSE(Fits({"Open MPI", "4.1.4"}, {"MVAPICH", "2.3.7"}));
}

TEST(LimitsTest, ControlGroups) {
  const TempDir v2, v1, none;
  v2.Write("proc/self/cgroup", "0::/user/run\n");
  v2.Write("sys/fs/cgroup/user/run/cpu.max", "max 100000\n");
  v2.Write("sys/fs/cgroup/user/run/memory.max", "9000000\n");
  v2.Write("sys/fs/cgroup/user/cpu.max", "150000 100000\n");
  v2.Write("sys/fs/cgroup/user/memory.max", "8000000\n");
  v2.Write("sys/fs/cgroup/pids.max", "77\n");
  const CgroupLimits two = ReadCgroupLimits(v2.path());
  EXPECT_EQ(two.cores, 1.5);
  EXPECT_EQ(two.memory_bytes, 8000000);
  EXPECT_EQ(two.processes, 77);
  v1.Write("proc/self/cgroup", "4:memory:/not/there\n1:cpu,cpuacct:/\nrubbish\n");
  v1.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  v1.Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "400000\n");
  v1.Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const CgroupLimits one = ReadCgroupLimits(v1.path());
  EXPECT_EQ(one.cores, 4);
  EXPECT_FALSE(one.memory_bytes.has_value()) << "the number for no limit";
  v1.Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  EXPECT_FALSE(ReadCgroupLimits(v1.path()).cores.has_value());
  EXPECT_FALSE(ReadCgroupLimits(none.path()).cores.has_value());
}

TEST(MachineTest, SharedMemory) {
  EXPECT_EQ(SharedMemoryAdvice(int64_t{64} << 20, 8), "");
  EXPECT_THAT(SharedMemoryAdvice(int64_t{64} << 20, 9), HasSubstr("/dev/shm has 64.0 MiB free"));
  EXPECT_THAT(SharedMemoryAdvice(int64_t{1} << 20, 1), HasSubstr("--shm-size=1g"));
}

TEST(ChildTest, EndsAreTold) {
  const ChildResult good = RunChild({"sh", "-c", "echo out; echo err >&2; exit 3"}, 60);
  EXPECT_EQ(good.end, ChildResult::kExited);
  EXPECT_EQ(good.code, 3);
  EXPECT_EQ(good.out, "out\n");
  EXPECT_EQ(good.err, "err\n");
  EXPECT_EQ(Describe(good, 60), "exited with 3");
  const ChildResult killed = RunChild({"sh", "-c", "kill -SEGV $$"}, 60);
  EXPECT_EQ(Describe(killed, 60), "was ended by signal 11 (Segmentation fault)");
  const ChildResult absent = RunChild({"/no/such/program"}, 60);
  EXPECT_EQ(Describe(absent, 60), "could not be started: No such file or directory");
  EXPECT_EQ(RunChild({"cat"}, 60).code, 0) << "its input is empty";
}

TEST(ChildTest, KeepsTheEndOfWhatIsPrinted) {
  const ChildResult child = RunChild({"sh", "-c", "seq 1000000; echo last"}, 60);
  EXPECT_LE(child.out.size(), size_t{48} << 10);
  EXPECT_TRUE(child.out.ends_with("\n1000000\nlast\n"));
}

// Those that ignore signals, have gone into a session of their own or hold the output open, too.
TEST(ChildTest, LeavesNothingBehind) {
  // No two test programs wait for each other's.
  const std::string sleep = "sleep 300.0" + std::to_string(getpid());
  const ChildResult child = RunChild({"sh", "-c",
                                      "trap '' TERM; setsid " + sleep + " & setsid sh -c '" +
                                          sleep + "; true' & while :; do " + sleep + "; done"},
                                     0.5);
  EXPECT_EQ(Describe(child, 0.5), "did not end within 0.5 s");
  EXPECT_LT(child.seconds, 30);
  EXPECT_EQ(NumProcessesWith(sleep), 0);
  const ChildResult quick = RunChild({"sh", "-c", "setsid " + sleep + " & echo gone"}, 60);
  EXPECT_EQ(quick.out, "gone\n");
  EXPECT_EQ(quick.code, 0);
  EXPECT_LT(quick.seconds, 30);
  EXPECT_EQ(NumProcessesWith(sleep), 0);
}

TEST(SelfTestTest, ThreadsAgree) {
  std::ostringstream out;
  EXPECT_EQ(RunSelfTest(/*processes=*/false, 60, out), absl::OkStatus());
  // 8 collectives, 2 sizes, 3 dtypes, 2 groups; a barrier, 5 times the rate.
  EXPECT_THAT(out.str(), HasSubstr("\nchecks 102\nall_reduce_mib_per_s "));
  for (const char* check :
       {"all_reduce (max) of 6 x bf16", "reduce_scatter of 524290 x f64",
        "all_gather of 1048578 x f32", "broadcast", "reduce of", "all_to_all", "send and recv"}) {
    EXPECT_THAT(out.str(), HasSubstr(check));
  }
  const absl::Status alone = RunSelfTest(/*processes=*/true, 60, out);
  EXPECT_THAT(Message(alone), HasSubstr("this process is one of 1, must be one of 2"));
}

}  // namespace doctor_test
}  // namespace apogee::tools::doctor
