// Finds the bytes that loads and stores access, and reports invalid addresses.
#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "batch.h"
#include "lanes.h"
#include "text.h"

namespace kernrec {

namespace {

// Indexed by the window number of a generic address.
constexpr Space kWindows[] = {Space::kGlobal, Space::kShared, Space::kLocal, Space::kConst, Space::kParam};

}  // namespace

KERNREC_INLINE Batch::Memory Batch::memory_at(Space space, int64_t address) const {
    const auto memory = [](const char* name, const std::vector<uint8_t>& bytes, uint64_t size, bool writable) {
        return Memory{name, 0, size, const_cast<uint8_t*>(bytes.data()), writable};
    };
    switch (space) {
        case Space::kGlobal: {
            const int64_t number = address >> kBufferShift;
            if (number < 1 || uint64_t(number) > launch.buffers.size()) return {};
            const Region& buffer = launch.buffers[number - 1];
            return {buffer.name.c_str(), number << kBufferShift, buffer.size, buffer.bytes, buffer.writable};
        }
        case Space::kShared: return memory("shared memory", shared_, launch.shared_bytes, true);
        case Space::kLocal: return memory("local memory", local_, launch.local_bytes, true);
        case Space::kArgument: return memory("arguments of calls", argument_, launch.argument_bytes, true);
        case Space::kConst: return memory("constant memory", launch.constants, launch.constant_bytes, false);
        case Space::kParam: return memory("parameters", launch.parameters, launch.parameter_bytes, false);
        default: return {};
    }
}

bool Batch::in_cluster(int64_t address, uint32_t bytes) const {
    const int64_t rank = (address >> kRankShift) - 1, byte = address & ((1 << kRankShift) - 1);
    return rank >= -1 && rank < int64_t(cluster_blocks()) && byte + bytes <= launch.shared_bytes;
}

KERNREC_INLINE bool Batch::resolve_inline(const Instruction& ins, uint32_t bytes, bool write, bool narrow,
                                          Resolved& at) {
    int64_t raw[kWarp];
    const uint32_t first_lane = at.warp * kWarp;
    if (narrow) {
        const int32_t* addresses = row<int32_t>(ins.a) + first_lane;
        for (uint32_t lane = 0; lane < kWarp; lane++) raw[lane] = int64_t(addresses[lane]) + ins.immediate;
    } else {
        const int64_t* addresses = row<int64_t>(ins.a) + first_lane;
        for (uint32_t lane = 0; lane < kWarp; lane++)
            raw[lane] = int64_t(uint64_t(addresses[lane]) + uint64_t(ins.immediate));
    }
    const int64_t one = raw[__builtin_ctz(at.mask)];
    if (at.mask != ~0u)
        for (uint32_t lane = 0; lane < kWarp; lane++) raw[lane] = kLanes.bit[lane] & at.mask ? raw[lane] : one;
    uint64_t apart = 0;
    for (uint32_t lane = 0; lane < kWarp; lane++) apart |= uint64_t(raw[lane] ^ one);
    at.same = at.mask == ~0u && apart == 0;
    at.consecutive = false;
    int64_t low = one, high = one;
    if (apart) {
        uint64_t gaps = 0;
        for (uint32_t lane = 0; lane < kWarp; lane++) gaps |= uint64_t(raw[lane] - raw[0]) ^ uint64_t(lane * bytes);
        at.consecutive = at.mask == ~0u && gaps == 0;
    }
    if (apart && apart >> 31 == 0) {  // the addresses differ only in their lowest bits
        int32_t least = INT32_MAX, most = 0;
        for (uint32_t lane = 0; lane < kWarp; lane++) {
            const int32_t rest = int32_t(raw[lane] & INT32_MAX);
            least = std::min(least, rest);
            most = std::max(most, rest);
        }
        const int64_t common = one & ~int64_t(INT32_MAX);
        low = common | least;
        high = common | most;
    } else if (apart) {
        for (uint32_t lane = 0; lane < kWarp; lane++) {
            low = std::min(low, raw[lane]);
            high = std::max(high, raw[lane]);
        }
    }
    const int64_t bits = one | int64_t(apart);
    if (bits & (bytes - 1)) return false;
    Space space = ins.space;
    if (space == Space::kGeneric) {
        if (low >> kWindowShift != high >> kWindowShift) return false;
        const int64_t window = low >> kWindowShift;
        if (window < 0 || window >= int64_t(std::size(kWindows))) return false;
        space = kWindows[window];
        const int64_t base = window << kWindowShift;
        if (base) {
            for (uint32_t lane = 0; lane < kWarp; lane++) raw[lane] -= base;
            low -= base;
            high -= base;
        }
    }
    at.space = space;
    std::memcpy(at.addresses, raw, sizeof raw);
    if (space == Space::kShared && high >> kRankShift) {  // the byte is in another block of the cluster
        const uint32_t own = block_of(at.warp), first_of_cluster = own - own % cluster_blocks();
        at.same = at.consecutive = false;
        for (uint32_t lane = 0; lane < kWarp; lane++) {
            if (!in_cluster(raw[lane], bytes)) return false;
            const int64_t rank = (raw[lane] >> kRankShift) - 1, byte = raw[lane] & ((1 << kRankShift) - 1);
            at.addresses[lane] = int64_t(flat({rank < 0 ? own : first_of_cluster + uint32_t(rank), uint32_t(byte)}));
            at.places[lane] = shared_.data() + at.addresses[lane];
        }
        at.base = 0;
        return true;
    }
    const Memory memory = memory_at(space, low);
    if (low < memory.start || uint64_t(high - memory.start) + bytes > memory.size || (write && !memory.writable))
        return false;
    uint8_t* bytes_at_start = memory.bytes;
    size_t stride = 0;  // bytes from one lane's memory to the next
    if (space == Space::kGlobal) {
        at.buffer = uint32_t((low >> kBufferShift) - 1);
    } else if (space == Space::kShared) {
        at.base = flat({block_of(at.warp), 0});
        bytes_at_start += at.base;
    } else if (space == Space::kLocal || space == Space::kArgument) {
        at.same = at.consecutive = false;
        stride = space == Space::kLocal ? local_stride_ : argument_stride_;
        bytes_at_start += first_lane * stride;
    }
    for (uint32_t lane = 0; lane < kWarp; lane++) at.places[lane] = bytes_at_start + (raw[lane] - memory.start);
    for (uint32_t lane = 1; stride && lane < kWarp; lane++) at.places[lane] += lane * stride;
    return true;
}

bool Batch::resolve_avx2(const Instruction& ins, uint32_t bytes, bool write, bool narrow, Resolved& at) {
    return resolve_inline(ins, bytes, write, narrow, at);
}
bool Batch::resolve_warp(const Instruction& ins, uint32_t bytes, bool write, bool narrow, Resolved& at) {
    return kAvx2 ? resolve_avx2(ins, bytes, write, narrow, at) : resolve_inline(ins, bytes, write, narrow, at);
}

const std::vector<Resolved>& Batch::access(const Instruction& ins, uint32_t bytes, AccessKind kind,
                                           uint32_t lanes_of_warp) {
    resolved_.clear();
    const bool narrow = ins.a.width == 32, write = kind != AccessKind::kRead;
    for (uint32_t i = 0; i < running; i++) {
        const uint32_t mask = this->mask(i, ins) & lanes_of_warp;
        if (!mask) continue;
        Resolved& at = resolved_.emplace_back();
        at.warp = running_warps_[i];
        at.mask = mask;
        if (resolve_warp(ins, bytes, write, narrow, at)) continue;
        // Lanes of the warp may access several memories, so count each memory separately.
        resolved_.pop_back();
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            Resolved one;
            one.warp = running_warps_[i];
            one.mask = rest & -rest;
            if (!resolve_warp(ins, bytes, write, narrow, one)) fail_access(ins, bytes, write, lanes_of_warp);
            bool joined = false;
            for (Resolved& other : resolved_) {
                if (other.warp != one.warp || other.space != one.space || other.buffer != one.buffer ||
                    other.base != one.base)
                    continue;
                const uint32_t lane = __builtin_ctz(one.mask);
                other.mask |= one.mask;
                other.addresses[lane] = one.addresses[lane];
                other.places[lane] = one.places[lane];
                joined = true;
            }
            if (!joined) resolved_.push_back(one);
        }
    }
    if (checks_) checks_->record(*this, ins, resolved_, bytes, kind);
    return resolved_;
}

std::vector<Resolved> Batch::access_of(const Instruction& ins, uint32_t bytes, AccessKind kind,
                                       const std::vector<WarpMask>& lanes) {
    Instruction unguarded = ins;
    unguarded.guard = {};
    return with_lanes(lanes, [&] { return access(unguarded, bytes, kind); });
}

void Batch::require_whole_warps(const Instruction& ins) {
    for (uint32_t i = 0; i < running; i++) {
        const uint32_t mask = this->mask(i, ins);
        if (mask && mask != ~0u)
            fail("not all 32 threads of the warp of " + coordinates(running_warps_[i] * kWarp) + " run it");
    }
}

// Throw Fault for one lane. Misaligned addresses come first. Other errors are sorted by address space and buffer.
// Within a buffer, out-of-bounds accesses precede forbidden writes.
void Batch::fail_access(const Instruction& ins, uint32_t bytes, bool write, uint32_t lanes_of_warp) {
    std::map<std::tuple<uint64_t, bool, uint32_t>, std::string> refusals;  // by (group, is a write, lane)
    for (uint32_t i = 0; i < running; i++)
        for (const uint32_t bit : LanesOf(mask(i, ins) & lanes_of_warp)) {
            const uint32_t lane = running_warps_[i] * kWarp + bit;
            uint64_t address = value(ins.a, lane) + uint64_t(ins.immediate);
            const int64_t extended =
                ins.a.width == 32 ? int64_t(row<int32_t>(ins.a)[lane]) : int64_t(value(ins.a, lane));
            int64_t at = int64_t(uint64_t(extended) + uint64_t(ins.immediate));
            Space space = ins.space;
            const auto accesses = [&] {
                return joined("accesses ", bytes, " bytes at ", space_name(space), " address ", hex(address),
                              ", which is ");
            };
            if (address & (bytes - 1)) {
                refusals[{0, false, lane}] = joined(accesses(), "not a multiple of ", bytes);
                continue;
            }
            const int64_t window = at >> kWindowShift;
            uint64_t group = ((address >> kWindowShift) << (kWindowShift - kBufferShift)) + 1;
            if (space == Space::kGeneric && window >= 0 && window < int64_t(std::size(kWindows))) {
                space = kWindows[window];
                address -= uint64_t(window) << kWindowShift;
                at -= window << kWindowShift;
            }
            const Memory memory = memory_at(space, at);
            if (space == Space::kGlobal) group += address >> kBufferShift;
            if (!memory.name) {
                refusals[{group, false, lane}] = accesses() + "in no buffer";
                continue;
            }
            const bool inside = space == Space::kShared
                                    ? in_cluster(at, bytes)
                                    : at >= memory.start && uint64_t(at - memory.start) + bytes <= memory.size;
            if (!inside)
                refusals[{group, false, lane}] =
                    joined("accesses ", bytes, " bytes at offset ", int64_t(address - uint64_t(memory.start)), " of ",
                           memory.name, ", which has ", memory.size, " bytes (address ", hex(address), ")");
            else if (write && !memory.writable)
                refusals[{group, true, lane}] = joined("writes to ", memory.name, ", which is read-only");
        }
    if (refusals.empty()) fail("the access was refused");  // unreachable, because some lane has a fault
    const auto& [order, text] = *refusals.begin();
    fail_lane(std::get<2>(order), text);
}

void Batch::check_races(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, bool write,
                        bool agree, bool is_copy) {
    if (races_) races_->record(ins.source, all, bytes, write, agree, is_copy);
}

SharedPlace Batch::shared_place(const Resolved& at, uint32_t lane) const {
    const size_t place = at.base + size_t(at.addresses[lane % kWarp]);
    return {uint32_t(place / shared_stride_), uint32_t(place % shared_stride_)};
}

std::vector<LanePlace> Batch::shared_places(const Instruction& ins, uint32_t bytes, bool write) {
    const std::vector<Resolved>& all = access(ins, bytes, write ? AccessKind::kWrite : AccessKind::kRead);
    std::vector<LanePlace> places;
    const Resolved* wrong = nullptr;
    for (const Resolved& at : all) {
        if (at.space != Space::kShared) {
            if (!wrong || std::tie(at.space, at.buffer) < std::tie(wrong->space, wrong->buffer)) wrong = &at;
            continue;
        }
        for (const uint32_t bit : LanesOf(at.mask)) {
            const uint32_t lane = at.warp * kWarp + bit;
            places.push_back({lane, shared_place(at, lane)});
        }
    }
    if (wrong) {
        const uint32_t lane = uint32_t(__builtin_ctz(wrong->mask));
        const std::string name = memory_at(wrong->space, wrong->addresses[lane]).name;
        fail_lane(wrong->warp * kWarp + lane, "gives an address in " + name + ", not in shared memory");
    }
    std::sort(places.begin(), places.end(), [](const LanePlace& a, const LanePlace& b) { return a.lane < b.lane; });
    return places;
}

Resolved Batch::resolve_lane(Space space, uint64_t address, uint32_t bytes, uint32_t lane, bool write) {
    Instruction ins;
    ins.space = space;
    ins.a = program.lane_address;
    ins.source = source;
    row<uint64_t>(ins.a)[lane] = address;
    return access_of(ins, bytes, write ? AccessKind::kWrite : AccessKind::kRead, {{lane / kWarp, 1u << lane % kWarp}})
        .at(0);
}

}  // namespace kernrec
