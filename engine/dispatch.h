// What the files share that connect tensor cores, copies and textures to the interpreter.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"

namespace kernrec {

inline std::vector<Operand> elements(const Operand& operand) {
    return operand.kind == OperandKind::kVector ? operand.items : std::vector<Operand>{operand};
}

inline void append(std::vector<Row>& rows, const std::vector<Row>& more) {
    rows.insert(rows.end(), more.begin(), more.end());
}

inline Space space_of(const Source& ins) {
    return ins.has("global")   ? Space::kGlobal
           : ins.has("shared") ? Space::kShared
           : ins.has("local")  ? Space::kLocal
           : ins.has("const")  ? Space::kConst
           : ins.has("param")  ? Space::kParam
                               : Space::kGeneric;
}

// Read the name of an instruction; what is not supported becomes the decoder's refusal.
template <class Parse>
auto form_from(Parse parse, const Source& ins) {
    try {
        return parse(ins.modifiers);
    } catch (const UnsupportedForm& form) {
        refuse(form.what());
    }
}

template <class Form>
const Form& form_of(const Instruction& ins) {
    return *static_cast<const Form*>(ins.form.get());
}

}  // namespace kernrec
