#include "handovers.h"

#include "text.h"

namespace kernrec {

namespace {

constexpr uint32_t kWord = 4;

bool is_wide(const Source& ins) { return ins.has("gpu") || ins.has("sys"); }
bool releases(const Source& ins) { return ins.has("release") || ins.has("acq_rel"); }
bool acquires(const Source& ins) { return ins.has("acquire") || ins.has("acq_rel"); }
bool is_strong(const Source& ins) {
    return releases(ins) || acquires(ins) || ins.has("relaxed") || ins.has("volatile");
}

}  // namespace

bool Handovers::hands_over(const Program& program) {
    bool orders = false;
    for (const Source& ins : program.sources) {
        const std::string& opcode = ins.opcode;
        const bool accesses = opcode == "ld" || opcode == "st" || opcode == "atom" || opcode == "red";
        orders |= accesses && is_wide(ins) && (releases(ins) || acquires(ins));
        if ((is_wide(ins) || ins.has("gl")) && (opcode == "membar" || (opcode == "fence" && !ins.has("proxy"))))
            return false;
    }
    return orders;
}

void Handovers::start_batch(const std::vector<int64_t>& block_numbers) {
    number_ = int32_t(blocks_.size());
    blocks_.push_back(block_numbers);
    past_.assign(block_numbers.size(), Clocks());
}

void Handovers::keep(const Instruction& ins, const Resolved& at, uint32_t bytes) {
    if (at.space != Space::kGlobal || !releases(batch_.program.sources[ins.source])) return;
    const Region& region = batch_.launch.buffers[at.buffer];
    for (const uint32_t bit : LanesOf(at.mask)) {
        const uint8_t* bytes_there = at.places[bit];
        State& state = states_[{at.buffer, uint64_t(bytes_there - region.bytes)}];
        state.before.assign(bytes_there, bytes_there + bytes);
        state.looked.clear();
    }
}

const uint8_t* Handovers::overlooked(const Instruction& ins, const Resolved& at, uint32_t lane, uint32_t bytes) const {
    if (at.space != Space::kGlobal || !acquires(batch_.program.sources[ins.source])) return nullptr;
    const auto state = states_.find({at.buffer, uint64_t(at.places[lane] - batch_.launch.buffers[at.buffer].bytes)});
    if (state == states_.end()) return nullptr;
    const auto& [released, before, looked] = state->second;
    return before.size() < bytes || looked.count({number_, at.warp}) ? nullptr : before.data();
}

void Handovers::record(const Instruction& ins, const std::vector<Resolved>& all, uint32_t bytes, bool write,
                       bool is_atomic) {
    const Source& source = batch_.program.sources[ins.source];
    const auto each = [&](auto visit) {
        for (const Resolved& at : all) {
            if (at.space != Space::kGlobal) continue;
            const Region& region = batch_.launch.buffers[at.buffer];
            for (const uint32_t bit : LanesOf(region.writable ? at.mask : 0))
                visit(at.warp, Place{at.buffer, uint64_t(at.places[bit] - region.bytes)});
        }
    };
    if (is_atomic || is_strong(source)) {
        std::set<std::pair<uint32_t, Place>> met;
        if (is_wide(source)) each([&](uint32_t warp, Place place) { met.insert({warp, place}); });
        for (const auto& [warp, place] : met) {
            State& state = states_[place];
            const std::pair<int32_t, uint32_t> look{number_, warp};
            if (acquires(source) && (is_atomic || state.looked.count(look) || state.before.empty()))
                acquire(warp, state);
            state.looked.insert(look);
            if (releases(source)) release(warp, state, is_atomic);
        }
        return;
    }
    for (const bool checks : {true, false})
        each([&](uint32_t warp, Place place) {
            std::vector<Word>& words = words_[place.first];
            if (words.empty()) words.resize(batch_.launch.buffers[place.first].size / kWord + 1);
            const uint64_t first = place.second / kWord;
            for (uint64_t word = first; word < first + bytes / kWord; word++)
                if (checks && !known(words[word], warp)) fail(ins, place.first, word, warp, write);
                else if (!checks && write) words[word] = {int32_t(warp), number_, clocks_.time(warp)};
        });
}

bool Handovers::known(const Word& word, uint32_t warp) const {
    if (word.warp < 0) return true;
    if (word.batch == number_) return word.time <= clocks_.seen(warp, uint32_t(word.warp));
    const Clocks& past = past_[warp / batch_.warps_per_block];
    const auto row = past.find(word.batch);
    return row != past.end() && word.time <= row->second[size_t(word.warp)];
}

void Handovers::release(uint32_t warp, State& state, bool is_atomic) {
    Clocks made = past_[warp / batch_.warps_per_block];
    made[number_] = clocks_.snapshot(warp);
    if (is_atomic)  // readers of the new value are also ordered after the previous release
        for (const auto& [batch, row] : state.released) learn(made[batch], row);
    state.released = std::move(made);
}

void Handovers::acquire(uint32_t warp, const State& state) {
    for (const auto& [batch, row] : state.released)
        if (batch == number_) clocks_.learn(warp, row);
        else learn(past_[warp / batch_.warps_per_block][batch], row);
}

void Handovers::fail(const Instruction& ins, uint32_t buffer, uint64_t word, uint32_t warp, bool write) {
    const Word& last = words_[buffer][word];
    const uint32_t each = batch_.warps_per_block, other = uint32_t(last.warp);
    throw Fault(FaultKind::kEmulation, ins.source,
                joined("race: warp ", warp % each, " of block number ", batch_.block_number(warp / each),
                       write ? " writes" : " reads", " byte ", word * kWord, " of ", batch_.launch.buffers[buffer].name,
                       ", which warp ", other % each, " of block number ", blocks_[size_t(last.batch)][other / each],
                       " wrote with no release and acquire between"));
}

}  // namespace kernrec
