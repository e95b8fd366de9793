// SPDX-License-Identifier: Apache-2.0

// `apogee doctor` as a whole, with mpiruns that are absent, hang, fail or belong to another MPI.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>

#include "apogee/comm/mpi/library.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/process_table.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee {
namespace doctor_command_test {

using ::apogee::testing::CommandResult;
using ::apogee::testing::NumProcessesWith;
using ::apogee::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kOpenMpi =
    "[ \"$1\" = --version ] && echo 'mpirun (Open MPI) 4.1.4' && exit\n";

CommandResult Doctor(const std::string& settings, const std::string& arguments) {
  return apogee::testing::Command("doctor " + arguments, settings);
}

// The rows of the block that is to be pasted, which must be the end of the output.
std::map<std::string, std::string> Rows(const std::string& out) {
  const std::string begin = "----------------------------------------\n```text\n",
                    end = "```\n----------------------------------------\n";
  const size_t at = out.find(begin);
  EXPECT_NE(at, std::string::npos) << out;
  EXPECT_TRUE(out.ends_with(end)) << out;
  std::map<std::string, std::string> rows;
  std::istringstream block(out.substr(at + begin.size()));
  for (std::string line; std::getline(block, line);) {
    if (!line.starts_with("  ") || line.starts_with("    ")) continue;
    const size_t gap = line.find("  ", 2);
    const size_t value = line.find_first_not_of(' ', gap);
    rows[line.substr(2, gap - 2)] = value == std::string::npos ? "" : line.substr(value);
  }
  return rows;
}

class DoctorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!comm::mpi::Library().has_value()) GTEST_SKIP() << "built without MPI";
  }
  // Settings with which `mpirun` is this script.
  std::string Mpirun(const std::string& script) const {
    const std::string path = dir_.Write("mpirun", "#!/bin/sh\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return "PATH=" + dir_.path() + ":$PATH";
  }
  TempDir dir_;
  // No two test programs wait for each other's.
  const std::string sleep_ = "sleep 300.0" + std::to_string(getpid());
};

TEST_F(DoctorTest, TableAndSelfTest) {
  const CommandResult result = Doctor(
      "AWS_SECRET_ACCESS_KEY=hunter2 HF_TOKEN=hunter2 SLURM_JWT=hunter2 NCCL_DEBUG=INFO "
      "HOME=/home/somebody OMPI_MCA_x=/home/somebody/y OMP_NUM_THREADS=1",
      "--time-limit 120");
  EXPECT_EQ(result.code, 0) << result.out;
  auto rows = Rows(result.out);
  for (const char* name : {"apogee",
                           "build type",
                           "compiler",
                           "instruction sets",
                           "oneDNN",
                           "Eigen",
                           "Abseil",
                           "MPI",
                           "mpirun",
                           "started by",
                           "model",
                           "cores online",
                           "cores of affinity",
                           "cgroup limit",
                           "threads of launch",
                           "memory",
                           "available",
                           "/dev/shm",
                           "this folder",
                           "open files",
                           "address space",
                           "locked memory",
                           "processes",
                           "system",
                           "kernel",
                           "inside"}) {
    EXPECT_FALSE(rows[name].empty()) << name << "\n" << result.out;
  }
  EXPECT_EQ(rows["given to loops"], rows["asked for"]);
  EXPECT_EQ(rows["given to products"], rows["asked for"]);
  EXPECT_THAT(rows["threads"], StartsWith("ok in "));
  EXPECT_THAT(rows["mpi"], StartsWith("ok in "));
  EXPECT_THAT(rows["tcp"], StartsWith("ok in "));
  for (const char* backend : {"threads", "tcp", "mpi"}) {
    EXPECT_THAT(rows[backend], HasSubstr(": 102 checks, all-reduce of 16 MiB at "));
  }
  EXPECT_EQ(rows["cuda"], "not built");
  EXPECT_EQ(rows["NCCL_DEBUG"], "INFO");
  EXPECT_EQ(rows["OMPI_MCA_x"], "~/y");
  EXPECT_EQ(rows["SLURM_JWT"], "(set, not shown)");
  for (const char* secret : {"hunter2", "AWS_SECRET", "HF_TOKEN", "somebody"}) {
    EXPECT_THAT(result.out, Not(HasSubstr(secret)));
  }
}

TEST_F(DoctorTest, MpirunThatHangs) {
  const std::string settings = Mpirun(std::string(kOpenMpi) + "setsid " + sleep_ +
                                      " &\necho starting >&2\n" + sleep_ + "\n");
  const auto start = std::chrono::steady_clock::now();
  const CommandResult result = Doctor(settings, "--time-limit 2");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(result.code, 1) << result.out;
  EXPECT_THAT(Rows(result.out)["mpi"], StartsWith("FAILED: did not end within 2 s"));
  EXPECT_THAT(result.out, HasSubstr("\n    | starting\n"));
  EXPECT_THAT(result.out, HasSubstr("\n! self test of mpi: try "));
  EXPECT_LT(seconds.count(), 60);
  EXPECT_EQ(NumProcessesWith(sleep_), 0);
}

TEST_F(DoctorTest, MpirunThatDoesNotEvenSayItsVersion) {
  const CommandResult result = Doctor(Mpirun(sleep_ + "\n"), "--time-limit 1");
  EXPECT_EQ(result.code, 1) << result.out;
  EXPECT_THAT(Rows(result.out)["mpirun"], HasSubstr("(--version did not end within 1 s)"));
  EXPECT_EQ(NumProcessesWith(sleep_), 0);
}

// A real one whose ranks stop: at the limit they go, too.
TEST_F(DoctorTest, RanksThatStop) {
  if (!comm::mpi::Library()->headers.starts_with("Open MPI")) GTEST_SKIP() << "not Open MPI";
  const TempDir temporary;
  const std::string real = "$(PATH=${PATH#*:} command -v mpirun)";
  const CommandResult result =
      Doctor("TMPDIR=" + temporary.path() + " " +
                 Mpirun("real=" + real +
                        "\n[ \"$1\" = --version ] && exec \"$real\" --version\n"
                        "exec \"$real\" --allow-run-as-root --oversubscribe -np 2 sh -c "
                        "'kill -STOP $$; : " +
                        sleep_ + "'\n"),
             "--time-limit 3");
  EXPECT_EQ(result.code, 1) << result.out;
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path())) << "session files of mpirun";
  EXPECT_THAT(Rows(result.out)["mpi"], StartsWith("FAILED: did not end within 3 s"));
  EXPECT_EQ(NumProcessesWith(sleep_), 0);
}

TEST_F(DoctorTest, MpirunOfAnotherMpi) {
  const bool is_open = comm::mpi::Library()->headers.starts_with("Open MPI");
  const CommandResult result = Doctor(
      Mpirun(is_open ? "echo 'HYDRA build details:'\necho '    Version:  4.0.2'\n" : kOpenMpi), "");
  EXPECT_EQ(result.code, 1) << result.out;
  auto rows = Rows(result.out);
  EXPECT_THAT(rows["threads"], StartsWith("ok in "));
  EXPECT_THAT(rows["mpi"], StartsWith(is_open ? "FAILED: mpirun is of MPICH 4.0.2, the program is "
                                                "linked with Open MPI "
                                              : "FAILED: mpirun is of Open MPI 4.1.4"));
  EXPECT_THAT(result.out, HasSubstr("\n! mpirun is of another MPI than the program"));
}

TEST_F(DoctorTest, MpirunThatStartsProcessesAlone) {
  const CommandResult result = Doctor(
      Mpirun("while [ \"$1\" != doctor ]; do last=$1; shift; done\nexec \"$last\" \"$@\"\n"), "");
  EXPECT_EQ(result.code, 1) << result.out;
  EXPECT_THAT(Rows(result.out)["mpi"], StartsWith("FAILED: exited with 1"));
  EXPECT_THAT(result.out, HasSubstr("this process is one of 1, must be one of 2"));
}

TEST_F(DoctorTest, MpirunThatFails) {
  const CommandResult result =
      Doctor(Mpirun(std::string(kOpenMpi) +
                    "echo \"[$(hostname):7] no route to 10.1.2.3\" >&2\necho was here\nexit 9\n"),
             "");
  EXPECT_EQ(result.code, 1) << result.out;
  EXPECT_EQ(Rows(result.out)["mpi"], "FAILED: exited with 9; last: was here");
  EXPECT_THAT(result.out, HasSubstr("\n    | [<host>:7] no route to <address>\n"));
}

TEST_F(DoctorTest, NoFolderForTheSession) {
  const CommandResult result = Doctor("TMPDIR=/no/such/folder", "");
  EXPECT_EQ(result.code, 1) << result.out;
  EXPECT_THAT(Rows(result.out)["mpi"], StartsWith("FAILED: no folder can be made in TMPDIR"));
}

TEST_F(DoctorTest, NoMpirun) {
  const CommandResult result = Doctor("PATH=" + dir_.path(), "");
  EXPECT_EQ(result.code, 0) << result.out;
  auto rows = Rows(result.out);
  EXPECT_EQ(rows["mpi"], "not tested: no mpirun on PATH");
  EXPECT_EQ(rows["mpirun"], "not on PATH");
  EXPECT_THAT(result.out, HasSubstr("\n! there is no mpirun on PATH: install openmpi-bin"));
}

TEST_F(DoctorTest, WhatGivesARankFewerThreads) {
#ifndef _OPENMP
  GTEST_SKIP() << "a rank of a build without OpenMP starts no threads";
#endif
  const std::string no_mpirun = "PATH=" + dir_.path() + " ";
  const CommandResult limited = Doctor(no_mpirun + "OMP_THREAD_LIMIT=1", "");
  EXPECT_EQ(limited.code, 0) << limited.out;
  auto rows = Rows(limited.out);
  EXPECT_EQ(rows["given to loops"], "1");
  EXPECT_EQ(rows["given to products"], "refused");
  EXPECT_EQ(rows["OpenMP's limit"], "1");
  EXPECT_THAT(limited.out, HasSubstr("OpenMP gives it 1: OMP_THREAD_LIMIT=1 is set; unset "));

  const CommandResult serial = Doctor(no_mpirun + "OMP_MAX_ACTIVE_LEVELS=0 OMP_DYNAMIC=true", "");
  rows = Rows(serial.out);
  EXPECT_EQ(rows["given to loops"], "1");
  EXPECT_EQ(rows["given to products"], rows["asked for"]);
  EXPECT_THAT(serial.out, HasSubstr("results are the same, but slower: OMP_MAX_ACTIVE_LEVELS is "
                                    "0; unset it, or set it to 1"));
  EXPECT_EQ(rows["dynamic adjustment"], "on");
  EXPECT_THAT(serial.out, HasSubstr("OMP_DYNAMIC is true; unset OMP_DYNAMIC"));
}

TEST_F(DoctorTest, AThreadOfOpenMpHasASmallStack) {
#ifndef _OPENMP
  GTEST_SKIP() << "a rank of a build without OpenMP starts no threads";
#endif
#ifdef APOGEE_EMULATED_CUDA
  GTEST_SKIP() << "the emulated GPU keeps 1.2 MiB on the stack of every thread";
#endif
  const CommandResult stacks = Doctor("PATH=" + dir_.path() + " OMP_STACKSIZE=64k", "");
  EXPECT_THAT(stacks.out, HasSubstr("a thread of OpenMP has a stack of 64 KiB, needs 256 KiB; "
                                    "unset OMP_STACKSIZE"));
}

TEST_F(DoctorTest, WrongUse) {
  for (const char* arguments : {"--time-limit 0", "--time-limit x", "--self-test nccl", "more"}) {
    EXPECT_EQ(Doctor("", arguments).code, 2) << arguments;
  }
  const CommandResult started = Doctor("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", "");
  EXPECT_EQ(started.code, 2);
  EXPECT_THAT(started.out, HasSubstr("has started 2 processes; start `apogee doctor` by itself"));
  EXPECT_EQ(Doctor("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1", "").out, "");
}

}  // namespace doctor_command_test
}  // namespace apogee
