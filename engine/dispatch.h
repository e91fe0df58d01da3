// Shared code of files that connect tensor cores, copies and textures to the engine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"

namespace kernrec {

inline Operands elements(const Operand& operand) {
    return operand.kind == OperandKind::kVector ? operand.items : Operands{operand};
}

// Convert an operand to an address operand. A register contains the address, and a variable is at the address.
inline Operand as_address(const Operand& operand) {
    if (operand.kind == OperandKind::kAddress) return operand;
    if (operand.kind != OperandKind::kRegister && operand.kind != OperandKind::kSymbol) refuse("address");
    Operand address;
    address.kind = OperandKind::kAddress;
    address.items = {operand};
    return address;
}

// Return the value of an integer literal. Refuse any other operand.
inline int64_t literal(const Operand& operand, const std::string& refused = "") {
    if (operand.kind != OperandKind::kInteger) refuse(refused);
    return operand.value;
}

// Return the first entry of a table for which a condition holds. Refuse the instruction if there is none.
template <class Entry, size_t size, class Condition>
const Entry& entry_of(const Entry (&table)[size], Condition holds, const std::string& refused = "") {
    for (const Entry& entry : table)
        if (holds(entry)) return entry;
    refuse(refused);
}

inline Space space_of(const Source& ins) {
    for (size_t i = size_t(Space::kGlobal); i <= size_t(Space::kArgument); i++)
        if (ins.has(space_name(Space(i)))) return Space(i);
    return Space::kGeneric;
}

// Return the type called `name`. Fail if it is not in `names`, the types of an instruction. Bit types are unsigned.
inline NumberType type_among(const std::string& name, std::initializer_list<const char*> names) {
    for (const char* each : names)
        if (name == each) return number_type(name);
    refuse("the type ." + name);
}

// Unsigned integer with the size of a type.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

// Applies an operation to both halves of packed operands.
template <const auto& op, class T, class Word>
struct Pairs {
    static T part(Word word, uint32_t half) { return bit_cast<T>(Bits<T>(word >> half * 8 * sizeof(T))); }
    template <class... S>
    Word operator()(S... words) const {
        const T low = op(part(words, 0)...), high = op(part(words, 1)...);
        return Word(bit_cast<Bits<T>>(low)) | Word(bit_cast<Bits<T>>(high)) << 8 * sizeof(T);
    }
};

constexpr size_t kMostRegisters = 128;

// Pointers to the bytes of one warp's registers, from a list of rows.
struct Fragments {
    uint8_t* registers[kMostRegisters];
    Fragments(Batch& batch, const std::vector<Row>& rows, uint32_t first_lane) {
        for (size_t i = 0; i < rows.size(); ++i)
            registers[i] = batch.row<uint8_t>(rows[i]) + size_t(first_lane) * rows[i].width / 8;
    }
};

inline void nothing(Batch&, const Instruction&) {}

// Decode `cp.async.bulk` and `cp.async.mbarrier.arrive`. Other files define these functions.
void decode_bulk(Decoder& decoder, const Source& ins);
void decode_arrival_after_copies(Decoder& decoder, const Source& ins);

// Call a function with the batch number of each lane that runs an instruction.
template <class Each>
void each_lane(Batch& batch, const Instruction& ins, Each each) {
    each_warp(batch, ins, [&](uint32_t, uint32_t first, uint32_t mask) {
        for (const uint32_t bit : LanesOf(mask)) each(first + bit);
    });
}

// Emit an operation with a parameter struct, which `form_of` returns.
template <class Form>
Instruction& emit_form(Decoder& decoder, Run run, Form form) {
    Instruction& made = decoder.emit(run);
    made.form = std::make_shared<const Form>(std::move(form));
    return made;
}

// Return a lane's value of an address operand, including the offset.
inline uint64_t address_at(Batch& batch, const Instruction& access, uint32_t lane) {
    return batch.value(access.a, lane) + uint64_t(access.immediate);
}

template <class Form>
const Form& form_of(const Instruction& ins) {
    return *static_cast<const Form*>(ins.form.get());
}

}  // namespace kernrec
