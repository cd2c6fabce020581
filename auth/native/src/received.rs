//! Received messages, as `sqs_api/gateway/payload.py` and `visibility/content/content.py` show
//! them and msgspec writes them.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::contents::{layout_of, DataKey};
use crate::extras::{md5_of_attributes, Attribute, Extras};
use crate::handles::{ReceiptKey, HANDLE_DIGITS};
use crate::json::{write_base64, write_digits, write_text};

const NUMBERS_FROM: u128 = 10_000_000_000_000_000_000; // of FIFO queues, 20 digits

#[derive(Clone, Copy)]
enum System {
    SenderId,
    SentTimestamp,
    ReceiveCount,
    FirstReceiveTimestamp,
    SequenceNumber,
    DeduplicationId,
    GroupId,
    TraceHeader,
    SourceArn,
}

/// In the order of the service model.
const SYSTEM: [(&str, System); 9] = [
    ("SenderId", System::SenderId),
    ("SentTimestamp", System::SentTimestamp),
    ("ApproximateReceiveCount", System::ReceiveCount),
    (
        "ApproximateFirstReceiveTimestamp",
        System::FirstReceiveTimestamp,
    ),
    ("SequenceNumber", System::SequenceNumber),
    ("MessageDeduplicationId", System::DeduplicationId),
    ("MessageGroupId", System::GroupId),
    ("AWSTraceHeader", System::TraceHeader),
    ("DeadLetterQueueSourceArn", System::SourceArn),
];

/// The attributes that a receive returns.
#[pyclass(frozen, module = "holdfast_native")]
pub struct Selection {
    system: Vec<(&'static str, System)>,
    everything: bool,
    names: Vec<String>,
    prefixes: Vec<String>,
}

impl Selection {
    fn has(&self, name: &str) -> bool {
        self.everything
            || self.names.iter().any(|one| one == name)
            || self.prefixes.iter().any(|one| name.starts_with(one))
    }
}

/// A Selection of `content.py`; None for one with names that no attribute has.
#[pyfunction]
pub fn selection(
    system: Vec<Bound<'_, PyAny>>,
    everything: bool,
    names: Vec<Bound<'_, PyAny>>,
    prefixes: Vec<Bound<'_, PyAny>>,
) -> Option<Selection> {
    let texts = |given: Vec<Bound<'_, PyAny>>| -> Option<Vec<String>> {
        given.iter().map(|one| one.extract().ok()).collect()
    };
    let known = |name: &String| SYSTEM.iter().find(|row| row.0 == name).copied();
    Some(Selection {
        system: texts(system)?.iter().map(known).collect::<Option<_>>()?,
        everything,
        names: texts(names)?,
        prefixes: texts(prefixes)?,
    })
}

/// What an answer says of one message.
struct Delivery {
    message_id: String,
    sequence: u64,
    handle_sequence: u64,
    receive_count: u32,
    first_received_at_ms: i64,
    sent_at_ms: i64,
    source_arn: Option<String>,
}

impl Delivery {
    fn of(lease: &Bound<'_, PyAny>, message: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = lease.py();
        let sequence = lease.getattr(intern!(py, "sequence"))?.extract()?;
        let original = lease.getattr(intern!(py, "original_sequence"))?.extract()?;
        let first = lease.getattr(intern!(py, "first_received_at_ms"))?;
        let source_arn = message.getattr(intern!(py, "dead_letter_source_arn"))?;
        Ok(Self {
            message_id: message.getattr(intern!(py, "message_id"))?.extract()?,
            sequence,
            handle_sequence: if original == 0 { sequence } else { original },
            receive_count: lease.getattr(intern!(py, "receive_count"))?.extract()?,
            first_received_at_ms: first.extract()?,
            sent_at_ms: message.getattr(intern!(py, "sent_at_ms"))?.extract()?,
            source_arn: source_arn.extract()?,
        })
    }
}

/// The answer in JSON to a receive, with all its messages. `key` has the number `sealed`, and is
/// None for what is stored unsealed; `selection` is None for no attributes. None if one of the
/// messages has another key, cannot be opened, or is not of this layout.
#[pyfunction]
#[pyo3(signature = (key, sealed, leases, messages, receipt_key, selection, fifo))]
pub fn received_json<'py>(
    py: Python<'py>,
    key: Option<&Bound<'py, PyAny>>,
    sealed: i64,
    leases: &Bound<'py, PyList>,
    messages: &Bound<'py, PyList>,
    receipt_key: &ReceiptKey,
    selection: Option<&Selection>,
    fifo: bool,
) -> Option<Bound<'py, PyBytes>> {
    if leases.len() != messages.len() || messages.is_empty() {
        return None;
    }
    let key = match key {
        None => None,
        Some(key) => Some(key.cast::<DataKey>().ok()?.try_borrow().ok()?),
    };
    let mut json = Vec::with_capacity(1024 * messages.len());
    let mut opened = Vec::new();
    json.extend_from_slice(b"{\"Messages\":[");
    for (lease, message) in leases.iter().zip(messages) {
        let delivery = Delivery::of(&lease, &message).ok()?;
        let data = message.getattr(intern!(py, "data")).ok()?;
        let data = data.cast::<PyBytes>().ok()?.as_bytes();
        let number = message.getattr(intern!(py, "sealed")).ok()?;
        if number.extract::<i64>().ok()? != sealed {
            return None;
        }
        let content = match &key {
            None => data,
            Some(key) => {
                opened.clear();
                opened.reserve(data.len());
                key.open_in(data, &mut opened)?;
                &opened
            }
        };
        write_message(&delivery, content, receipt_key, selection, fifo, &mut json)?;
        json.push(b',');
    }
    json.pop(); // the last comma
    json.extend_from_slice(b"]}");
    Some(PyBytes::new(py, &json))
}

fn write_message(
    delivery: &Delivery,
    content: &[u8],
    receipt_key: &ReceiptKey,
    selection: Option<&Selection>,
    fifo: bool,
    json: &mut Vec<u8>,
) -> Option<()> {
    let (md5, body, extras) = layout_of(content)?;
    let mut handle = [0; HANDLE_DIGITS];
    receipt_key.write(
        delivery.handle_sequence,
        delivery.receive_count,
        &mut handle,
    );
    json.extend_from_slice(b"{\"MessageId\":");
    write_text(&delivery.message_id, json);
    json.extend_from_slice(b",\"ReceiptHandle\":\"");
    json.extend_from_slice(&handle);
    json.extend_from_slice(b"\",\"MD5OfBody\":\"");
    write_digits(md5, json);
    json.extend_from_slice(b"\",\"Body\":");
    write_text(std::str::from_utf8(body).ok()?, json);
    if let Some(selection) = selection {
        let extras = Extras::read(extras)?;
        write_system(delivery, &extras, selection, fifo, json);
        write_attributes(&extras, selection, json)?;
    }
    json.push(b'}');
    Some(())
}

fn write_system(
    delivery: &Delivery,
    extras: &Extras,
    selection: &Selection,
    fifo: bool,
    json: &mut Vec<u8>,
) {
    let mut before: &[u8] = b",\"Attributes\":{";
    for (name, which) in &selection.system {
        let number: String;
        let value = match which {
            System::SenderId => Some(extras.sender),
            System::DeduplicationId if delivery.source_arn.is_some() => extras
                .deduplication_id
                .map(|_| delivery.message_id.as_str()),
            System::DeduplicationId => extras.deduplication_id,
            System::GroupId => extras.group_id,
            System::TraceHeader => extras.trace_header,
            System::SourceArn => delivery.source_arn.as_deref(),
            System::SequenceNumber if !fifo => None,
            System::SentTimestamp
            | System::ReceiveCount
            | System::FirstReceiveTimestamp
            | System::SequenceNumber => {
                number = number_of(delivery, *which);
                Some(number.as_str())
            }
        };
        let Some(value) = value else {
            continue;
        };
        json.extend_from_slice(before);
        write_text(name, json);
        json.push(b':');
        write_text(value, json);
        before = b",";
    }
    if before == b"," {
        json.push(b'}');
    }
}

fn number_of(delivery: &Delivery, which: System) -> String {
    match which {
        System::SentTimestamp => delivery.sent_at_ms.to_string(),
        System::FirstReceiveTimestamp => delivery.first_received_at_ms.to_string(),
        System::SequenceNumber => (NUMBERS_FROM + u128::from(delivery.sequence)).to_string(),
        _ => delivery.receive_count.to_string(),
    }
}

fn write_attributes(extras: &Extras, selection: &Selection, json: &mut Vec<u8>) -> Option<()> {
    let all = extras.attributes.iter();
    let chosen: Vec<&Attribute> = all.filter(|one| selection.has(one.name)).collect();
    if chosen.is_empty() {
        return Some(());
    }
    json.extend_from_slice(b",\"MD5OfMessageAttributes\":\"");
    write_digits(&md5_of_attributes(&chosen), json);
    let mut before: &[u8] = b"\",\"MessageAttributes\":{";
    for attribute in chosen {
        json.extend_from_slice(before);
        write_text(attribute.name, json);
        if attribute.is_binary() {
            json.extend_from_slice(b":{\"BinaryValue\":");
            write_base64(attribute.value, json);
        } else {
            json.extend_from_slice(b":{\"StringValue\":");
            write_text(std::str::from_utf8(attribute.value).ok()?, json);
        }
        json.extend_from_slice(b",\"DataType\":");
        write_text(attribute.data_type, json);
        json.push(b'}');
        before = b",";
    }
    json.push(b'}');
    Some(())
}
