#include "races.h"

#include <algorithm>

#include "batch.h"

namespace kernrec {

namespace {

constexpr int16_t kNobody = -1, kSeveral = -2;

bool others(int16_t last, int16_t warp) { return last != kNobody && last != warp; }

}  // namespace

void TensorReads::start_batch() {
    std::fill(readers_.begin(), readers_.end(), 0);
    std::fill(stored_.begin(), stored_.end(), 0);
    in_flight_ = 0;
}

void TensorReads::pass_barrier(uint32_t block) {
    const auto first = stored_.begin() + size_t(block) * pieces_per_block_;
    std::transform(first, first + pieces_per_block_, first, [](int16_t by) { return by > 0 ? int16_t(-1) : by; });
}

void TensorReads::fence(uint32_t block, const std::vector<uint32_t>& warps) {
    for (size_t i = size_t(block) * pieces_per_block_; i < size_t(block + 1) * pieces_per_block_; i++)
        if (stored_[i] == -1 || (stored_[i] > 0 && std::count(warps.begin(), warps.end(), uint32_t(stored_[i] - 1))))
            stored_[i] = 0;
}

void TensorReads::write(uint32_t source, size_t place, uint32_t warp, bool is_copy) {
    const size_t piece = place / kPiece;
    if (in_flight_ && readers_[piece])
        throw Fault(FaultKind::kEmulation, source,
                    "writes shared memory that an unfinished operation reads; wait for the operation first");
    if (!is_copy) stored_[piece] = int16_t(warp + 1);
}

void TensorReads::begin(uint32_t source, const Pieces& pieces) {
    for (const uint32_t piece : pieces)
        if (stored_[piece])
            throw Fault(FaultKind::kEmulation, source,
                        "reads shared memory that threads stored to with no fence.proxy.async in between");
    for (const uint32_t piece : pieces) readers_[piece]++;
    in_flight_++;
}

void TensorReads::end(const Pieces& pieces) {
    for (const uint32_t piece : pieces) readers_[piece]--;
    in_flight_--;
}

void TensorReads::fill(size_t first_byte, size_t end_byte) {
    for (const uint32_t piece : pieces_of(first_byte, end_byte)) stored_[piece] = 0;
}

Pieces TensorReads::pieces_of(size_t first_byte, size_t end_byte) {
    Pieces pieces;
    for (size_t piece = first_byte / kPiece; piece * kPiece < end_byte; piece++) pieces.push_back(uint32_t(piece));
    return pieces;
}

Pieces TensorReads::pieces_of(const std::vector<size_t>& places) const {
    std::vector<bool> present(readers_.size());
    for (const size_t place : places) present[place / kPiece] = true;
    Pieces pieces;
    for (size_t piece = 0; piece < present.size(); piece++)
        if (present[piece]) pieces.push_back(uint32_t(piece));
    return pieces;
}

RaceDetector::RaceDetector(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block)
    : tensor_reads((shared_bytes + 15) / 16, blocks),
      stride_((shared_bytes + 15) / 16 * 16),
      warps_per_block_(warps_per_block) {}

void RaceDetector::start_batch(const std::vector<int64_t>& block_numbers) {
    block_numbers_ = block_numbers;
    tensor_reads.start_batch();
}

std::string RaceDetector::warp_text(uint32_t warp) const {
    return "warp " + std::to_string(warp % warps_per_block_) + " of block number " +
           std::to_string(block_numbers_[warp / warps_per_block_]);
}

std::string RaceDetector::access_text(uint32_t warp, bool write, size_t place) const {
    return "race: " + warp_text(warp) + (write ? " writes" : " reads") + " byte " + std::to_string(place % stride_) +
           " of shared memory";
}

void RaceDetector::pass_cluster_barrier(uint32_t first, uint32_t count) {
    for (uint32_t block = first; block < first + count; block++) pass_barrier(block);
}

BarrierRaces::BarrierRaces(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block)
    : RaceDetector(shared_bytes, blocks, warps_per_block),
      writer_(size_t(stride_) * blocks, kNobody),
      reader_(size_t(stride_) * blocks, kNobody) {}

void BarrierRaces::start_batch(const std::vector<int64_t>& block_numbers) {
    RaceDetector::start_batch(block_numbers);
    std::fill(writer_.begin(), writer_.end(), kNobody);
    std::fill(reader_.begin(), reader_.end(), kNobody);
}

void BarrierRaces::pass_barrier(uint32_t block) {
    std::fill_n(writer_.begin() + size_t(block) * stride_, stride_, kNobody);
    std::fill_n(reader_.begin() + size_t(block) * stride_, stride_, kNobody);
    tensor_reads.pass_barrier(block);
}

void BarrierRaces::record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                          bool is_copy) {
    // Check all lanes before recording any, because lanes of one access do not race with each other.
    if (write)
        each_shared_lane(all, [&](uint32_t warp, size_t place) { tensor_reads.write(source, place, warp, is_copy); });
    bool several_before = false;
    each_shared_lane(all, [&](uint32_t number, size_t place) {
        const int16_t warp = int16_t(number);
        for (uint32_t k = 0; k < bytes; k++) {
            if (write && writer_[place + k] == kSeveral) several_before = true;
            else if (others(writer_[place + k], warp) || (write && others(reader_[place + k], warp)))
                fail(source, all, bytes, write);
        }
    });
    if (!write) {
        each_shared_lane(all, [&](uint32_t warp, size_t place) {
            for (uint32_t k = 0; k < bytes; k++) {
                int16_t& reader = reader_[place + k];
                reader = others(reader, int16_t(warp)) ? kSeveral : int16_t(warp);
            }
        });
        return;
    }
    if (several_before) {  // several warps wrote equal values here, so there is no single writer
        std::map<size_t, int16_t> here;
        each_shared_lane(all, [&](uint32_t warp, size_t first) {
            for (size_t place = first; place < first + bytes; place++) {
                if (writer_[place] != kSeveral) continue;
                auto [entry, is_new] = here.emplace(place, int16_t(warp));
                if (!is_new && entry->second != int16_t(warp)) entry->second = kSeveral;
            }
        });
        for (const auto& [place, warp] : here)
            if (warp != kSeveral || !agree) fail(source, all, bytes, write);
    }
    each_shared_lane(all, [&](uint32_t warp, size_t place) {
        for (uint32_t k = 0; k < bytes; k++) {
            int16_t& writer = writer_[place + k];
            if (others(writer, int16_t(warp))) {
                if (!agree) fail(source, all, bytes, write, true);
                writer = kSeveral;
            } else {
                writer = int16_t(warp);
            }
        }
    });
}

TileRead BarrierRaces::begin_tile(uint32_t source, const std::vector<size_t>& places, std::vector<uint32_t> warps) {
    int16_t last = kNobody;
    bool wrote = false;
    for (const size_t place : places) {
        wrote |= writer_[place] != kNobody;
        last = std::max(last, writer_[place]);
    }
    if (wrote) {
        const std::string who = last < 0 ? "several warps" : "warp " + std::to_string(last % int(warps_per_block_));
        const int64_t block = last < 0 ? 0 : block_numbers_[uint32_t(last) / warps_per_block_];
        throw Fault(FaultKind::kEmulation, source,
                    "race: reads shared memory that " + who + " of block number " + std::to_string(block) +
                        " wrote with no barrier between");
    }
    for (const size_t place : places) reader_[place] = kSeveral;
    TileRead tile{tensor_reads.pieces_of(places), std::move(warps)};
    tensor_reads.begin(source, tile.pieces);
    return tile;
}

void BarrierRaces::fail(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write,
                        bool among_itself) {
    struct Touch {
        size_t place;
        int16_t warp;
    };
    std::vector<Touch> touches;
    each_shared_lane(all, [&](uint32_t warp, size_t place) {
        for (uint32_t k = 0; k < bytes; k++) touches.push_back({place + k, int16_t(warp)});
    });
    auto clashes = [&](const Touch& touch) {
        return others(writer_[touch.place], touch.warp) || (write && others(reader_[touch.place], touch.warp));
    };
    auto first = among_itself ? touches.end() : std::find_if(touches.begin(), touches.end(), clashes);
    if (first == touches.end()) {  // two warps of this access write the same byte
        for (const Touch& touch : touches) writer_[touch.place] = touch.warp;
        first = std::find_if(touches.begin(), touches.end(),
                             [&](const Touch& touch) { return writer_[touch.place] != touch.warp; });
    }
    const int16_t last = writer_[first->place];
    const bool wrote = last != kNobody && last != first->warp;
    const int16_t other = wrote ? last : reader_[first->place];
    const std::string who =
        other == kSeveral ? "several warps" : "warp " + std::to_string(other % int(warps_per_block_));
    throw Fault(FaultKind::kEmulation, source,
                access_text(uint32_t(first->warp), write, first->place) + ", which " + who +
                    (wrote ? " wrote" : " read") + " with no barrier between");
}

}  // namespace kernrec
