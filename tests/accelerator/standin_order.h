// What happens before what on an accelerator with streams, by vector clocks: finds races that computing in order hides.
//
// Mattern, "Virtual Time and Global States of Distributed Systems", 1989. A lane is a stream of a device, or the host. What
// a lane has done since it was last heard of may still be under way; waiting for an event is how to hear of it. Two accesses
// to one piece of memory of which neither is known to the other's lane, and one writes, are a race. So is memory that is
// given back while another stream than its own may still use it, unless `record_stream` has named that stream, and pinned
// memory that the host changes before a copy from it has been made (standin.cpp sees these).

#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace order {

using Lane = std::pair<int, int64_t>; // device and stream
using Times = std::map<Lane, int64_t>; // how much of each lane has been heard of

struct Access {
  int64_t time = 0;
  std::string by;
};

struct Memory {
  Lane owner; // stream on which it was allocated
  std::pair<Lane, Access> written;
  std::map<Lane, Access> read;
  std::set<Lane> recorded;
};

class Order {
 public:
  void begin(const void* place, Lane owner) {
    std::lock_guard<std::mutex> held(lock_);
    memory_[place] = {owner, {owner, {}}, {}, {}};
  }

  void use(const void* place, Lane lane, bool writes, const std::string& by) {
    std::lock_guard<std::mutex> held(lock_);
    auto found = memory_.find(place);
    if (found == memory_.end()) return;
    Memory& memory = found->second;
    Times& known = seen_[lane];
    merge(known, host_);
    const int64_t now = ++known[lane];
    check(known, lane, memory.written, by);
    if (writes) {
      for (const auto& access : memory.read) check(known, lane, access, by);
      memory.written = {lane, {now, by}};
      memory.read.clear();
    } else {
      memory.read[lane] = {now, by};
    }
  }

  void record_stream(const void* place, Lane lane) {
    std::lock_guard<std::mutex> held(lock_);
    auto found = memory_.find(place);
    if (found != memory_.end()) found->second.recorded.insert(lane);
  }

  void end(const void* place) {
    std::lock_guard<std::mutex> held(lock_);
    auto found = memory_.find(place);
    if (found == memory_.end()) return;
    Memory& memory = found->second;
    Times& known = seen_[memory.owner];
    merge(known, host_);
    memory.read.insert(memory.written);
    for (const auto& [lane, access] : memory.read)
      if (!memory.recorded.count(lane)) check(known, memory.owner, {lane, access}, "release");
    memory_.erase(found);
  }

  Times heard_by(Lane lane) {
    std::lock_guard<std::mutex> held(lock_);
    return seen_[lane];
  }

  void tell(Lane lane, const Times& times) {
    std::lock_guard<std::mutex> held(lock_);
    merge(seen_[lane], times);
  }

  void tell_host(const Times& times) {
    std::lock_guard<std::mutex> held(lock_);
    merge(host_, times);
  }

  void tell_host_all() {
    std::lock_guard<std::mutex> held(lock_);
    for (const auto& one : seen_) merge(host_, one.second);
  }

  void report(std::string race) {
    std::lock_guard<std::mutex> held(lock_);
    races_.push_back(std::move(race));
  }

  std::vector<std::string> take_races() {
    std::lock_guard<std::mutex> held(lock_);
    return std::exchange(races_, {});
  }

 private:
  static void merge(Times& into, const Times& from) {
    for (const auto& [lane, time] : from) into[lane] = std::max(into[lane], time);
  }

  void check(const Times& known, Lane lane, const std::pair<Lane, Access>& other, const std::string& by) {
    if (other.first == lane) return;
    auto heard = known.find(other.first);
    if ((heard == known.end() ? 0 : heard->second) < other.second.time)
      races_.push_back(by + " on " + named(lane) + " does not wait for " + other.second.by + " on " + named(other.first));
  }

  static std::string named(Lane lane) {
    return "stream " + std::to_string(lane.second) + " of device " + std::to_string(lane.first);
  }

  std::mutex lock_;
  std::map<const void*, Memory> memory_;
  std::map<Lane, Times> seen_;
  Times host_;
  std::vector<std::string> races_;
};

} // namespace order
