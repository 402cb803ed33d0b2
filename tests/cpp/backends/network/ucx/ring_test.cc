// Rings: messages come out as they went in, also from a process that has ended; what is no ring is refused, and what is
// scribbled into one hurts nobody.
#include "backends/network/ucx/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "support/check.h"

namespace fastjax::test {
namespace {

using namespace network::ucx;

constexpr uint64_t kProof = 1234;

struct Bell {
  Bell() { CHECK(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0); }
  ~Bell() {
    close(ends[0]);
    close(ends[1]);
  }
  // How often it has been rung since.
  long Rung() const {
    std::array<char, 64> bytes{};
    const ssize_t got = read(ends[0], bytes.data(), bytes.size());
    return got > 0 ? got : 0;
  }
  std::array<int, 2> ends{};
};

Header HeaderOf(uint64_t number, size_t bytes) {
  Header header{};
  header.magic = kHeaderMagic;
  header.number = number;
  header.bytes = bytes;
  return header;
}

std::vector<std::byte> DataOf(uint64_t number, size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(number * 31 + i);
  return data;
}

struct Message {
  uint64_t number;
  uint32_t nic_worker;
  std::vector<std::byte> data;
};

bool Send(RingWriter* writer, const Message& message) {
  return writer->Send(HeaderOf(message.number, message.data.size()), message.nic_worker, message.data.data());
}

bool Next(RingReader* reader, Message* message) {
  Header header{};
  if (!reader->Next(&header, &message->nic_worker)) return false;
  CHECK(header.bytes <= kMostInRing);
  message->number = header.number;
  message->data.resize(header.bytes);
  reader->Take(message->data.data());
  return true;
}

TEST(InOrder) {
  const Bell doorbell;
  RingReader reader;
  RingWriter writer;
  CHECK(!writer.connected() && reader.descriptor() < 0);
  CHECK(!Send(&writer, {0, 0, {}}));
  CHECK(reader.Open(kProof, doorbell.ends[0]));
  CHECK(writer.Open(getpid(), reader.descriptor(), kProof));
  std::mt19937 random(7);
  std::deque<Message> in_flight;
  uint64_t sent = 0, full = 0;
  while (sent < 20000) {
    const size_t most = random() % 50 == 0 ? kMostInRing : 300;
    const size_t bytes = random() % (most + 1);
    Message message{sent, static_cast<uint32_t>(random() % 9), DataOf(sent, bytes)};
    if (Send(&writer, message)) {
      ++sent;
      in_flight.push_back(std::move(message));
      if (random() % 1000 != 0) continue;
    } else {
      ++full;
    }
    // The longest message finds room when half of the ring is read.
    for (size_t left = random() % 2 == 0 ? 0 : in_flight.size() / 2; in_flight.size() > left;) {
      Message got{};
      CHECK(Next(&reader, &got));
      const Message& expected = in_flight.front();
      CHECK(got.number == expected.number && got.nic_worker == expected.nic_worker && got.data == expected.data);
      in_flight.pop_front();
    }
    // A writer that comes later goes on where the last one was.
    if (random() % 100 == 0) CHECK(writer.Open(getpid(), reader.descriptor(), kProof));
  }
  CHECK(full > 0);
  CHECK(!Send(&writer, {0, 0, std::vector<std::byte>(kMostInRing + 1)}));
  reader.Close();
  CHECK(!Send(&writer, {0, 0, {}}));
}

TEST(Bell) {
  const Bell doorbell;
  RingReader reader;
  RingWriter writer;
  CHECK(reader.Arm());
  CHECK(reader.Open(kProof, doorbell.ends[0]));
  CHECK(writer.Open(getpid(), reader.descriptor(), kProof));
  Message message{1, 0, {}};
  CHECK(Send(&writer, message));
  writer.Ring();
  CHECK_EQ(doorbell.Rung(), 0);  // nobody sleeps
  CHECK(!reader.Arm());
  CHECK(Next(&reader, &message));
  CHECK(reader.Arm());
  CHECK(Send(&writer, message));
  CHECK(Send(&writer, message));
  CHECK_EQ(doorbell.Rung(), 0);
  writer.Ring();
  writer.Ring();
  CHECK_EQ(doorbell.Rung(), 1);
  CHECK(Next(&reader, &message));
  CHECK(Next(&reader, &message));
  CHECK(reader.Arm());
  reader.Disarm();
  CHECK(Send(&writer, message));
  writer.Ring();
  CHECK_EQ(doorbell.Rung(), 0);
}

TEST(FromAnotherProcess) {
  const Bell doorbell;
  RingReader reader;
  CHECK(reader.Open(kProof, doorbell.ends[0]));
  CHECK(reader.Arm());
  const pid_t reading = getpid();
  const pid_t child = fork();
  if (child == 0) {
    RingWriter writer;
    bool good = writer.Open(reading, reader.descriptor(), kProof);
    for (uint64_t i = 0; i < 10; ++i) good = good && Send(&writer, {i, 1, DataOf(i, 100 * i)});
    writer.Ring();
    _exit(good ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  CHECK_EQ(doorbell.Rung(), 1);
  Message message{};
  for (uint64_t i = 0; i < 10; ++i) {
    CHECK(Next(&reader, &message));
    CHECK(message.number == i && message.data == DataOf(i, 100 * i));
  }
  CHECK(!Next(&reader, &message));
}

TEST(WhatIsNoRing) {
  Bell doorbell;
  RingReader reader;
  RingWriter writer;
  CHECK(!reader.Open(kProof, -1));
  CHECK(reader.Open(kProof, doorbell.ends[0]));
  CHECK(!writer.Open(getpid(), reader.descriptor(), kProof + 1));
  CHECK(!writer.Open(getpid(), doorbell.ends[0], kProof));
  CHECK(!writer.Open(getpid(), -1, kProof));
  CHECK(!writer.Open(-1, reader.descriptor(), kProof));
  struct stat found{};
  CHECK(fstat(reader.descriptor(), &found) == 0);
  CHECK_EQ(found.st_mode & 0777u, 0600u);
  CHECK_EQ(found.st_nlink, 0u);  // nothing is left of it
  CHECK(ftruncate(reader.descriptor(), 0) != 0);
  // The same bytes where they can be taken away again.
  const int copy = memfd_create("copy", MFD_CLOEXEC);
  std::vector<char> bytes(static_cast<size_t>(found.st_size));
  CHECK(pread(reader.descriptor(), bytes.data(), bytes.size(), 0) == found.st_size);
  CHECK(pwrite(copy, bytes.data(), bytes.size(), 0) == found.st_size);
  CHECK(!writer.Open(getpid(), copy, kProof));
  close(copy);
  CHECK(writer.Open(getpid(), reader.descriptor(), kProof));
  // Something else has the doorbell's number by now.
  const int file = memfd_create("file", MFD_CLOEXEC);
  CHECK(dup2(file, doorbell.ends[0]) == doorbell.ends[0]);
  close(file);
  CHECK(!writer.Open(getpid(), reader.descriptor(), kProof));
  CHECK(!writer.connected());
}

TEST(Scribbles) {
  const Bell doorbell;
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    RingReader reader;
    RingWriter writer;
    CHECK(reader.Open(kProof, doorbell.ends[0]));
    CHECK(writer.Open(getpid(), reader.descriptor(), kProof));
    struct stat found{};
    CHECK(fstat(reader.descriptor(), &found) == 0);
    const auto size = static_cast<size_t>(found.st_size);
    void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, reader.descriptor(), 0);
    CHECK(memory != MAP_FAILED);
    for (int round = 0; round < 20; ++round) {
      for (uint64_t i = 0; i < 5; ++i) Send(&writer, {i, 0, DataOf(i, random() % 5000)});
      for (int i = 0; i < 5; ++i) {
        // Near the beginning are the ring's own words, and the first messages.
        const size_t at = random() % ((random() % 2 == 0 ? size : 1024) / sizeof(uint64_t)) * sizeof(uint64_t);
        const uint64_t word = random() >> random() % 64;
        std::memcpy(static_cast<std::byte*>(memory) + at, &word, sizeof(word));
      }
      Message message{};
      for (size_t i = 0; i < size / sizeof(Header) && Next(&reader, &message); ++i) {
      }
    }
    munmap(memory, size);
  }
}

// What cannot be a message ends the ring, and its writer finds no room in it.
TEST(TheEnd) {
  const Bell doorbell;
  RingReader reader;
  RingWriter writer;
  CHECK(reader.Open(kProof, doorbell.ends[0]));
  CHECK(writer.Open(getpid(), reader.descriptor(), kProof));
  Header header = HeaderOf(1, 0);
  header.magic += 1;
  CHECK(writer.Send(header, 0, nullptr));
  Message message{};
  CHECK(!Next(&reader, &message));
  CHECK(reader.descriptor() < 0);
  CHECK(!Send(&writer, {2, 0, {}}));
}

}  // namespace
}  // namespace fastjax::test
