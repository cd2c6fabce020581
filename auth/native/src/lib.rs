//! The hot path's pure functions, once more. Python is the judge: whatever is odd gets None here,
//! and the Python function of the same name decides. No sockets, no queues, no policy.

use pyo3::prelude::*;

mod attributes;
mod contents;
mod extras;
mod handles;
mod head;
mod hex;
mod json;
mod received;
mod signers;

#[pymodule]
fn holdfast_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<contents::DataKey>()?;
    module.add_class::<handles::ReceiptKey>()?;
    module.add_class::<head::HeadReader>()?;
    module.add_class::<head::Headers>()?;
    module.add_class::<received::Selection>()?;
    module.add_class::<signers::Signers>()?;
    module.add_function(wrap_pyfunction!(contents::packed, module)?)?;
    module.add_function(wrap_pyfunction!(received::received_json, module)?)?;
    module.add_function(wrap_pyfunction!(received::selection, module)?)?;
    module.add("INTERFACE", 4)?;
    Ok(())
}
