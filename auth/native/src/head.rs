//! The head of a plainly formed request, see `sqs_api/protocol/request.py`.

use std::collections::HashSet;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

const NAME_BYTES_MAX: usize = 64;

#[derive(Clone, Copy)]
struct Place {
    name: (u32, u32),
    value: (u32, u32),
}

/// The headers of one request, as a Mapping of lower-case names to values, in the order sent.
#[pyclass(frozen, mapping, module = "holdfast_native")]
pub struct Headers {
    /// The head as sent.
    head: Vec<u8>,
    /// The lower-case names, each with a line feed behind it.
    pub names: Vec<u8>,
    places: Vec<Place>,
}

impl Headers {
    /// The value of a header.
    pub fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let found = self
            .places
            .iter()
            .find(|place| self.name_at(place) == name)?;
        Some(self.value_at(found))
    }

    fn name_at(&self, place: &Place) -> &[u8] {
        &self.names[place.name.0 as usize..place.name.1 as usize]
    }

    fn value_at(&self, place: &Place) -> &[u8] {
        &self.head[place.value.0 as usize..place.value.1 as usize]
    }
}

#[pymethods]
impl Headers {
    #[pyo3(signature = (name, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        name: &[u8],
        default: Option<Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        match self.value(name) {
            Some(value) => Some(PyBytes::new(py, value).into_any()),
            None => default,
        }
    }

    fn __getitem__<'py>(&self, py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        match self.value(name) {
            Some(value) => Ok(PyBytes::new(py, value)),
            None => Err(PyKeyError::new_err(PyBytes::new(py, name).unbind())),
        }
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        name.extract::<&[u8]>()
            .is_ok_and(|name| self.value(name).is_some())
    }

    fn __len__(&self) -> usize {
        self.places.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.keys(py)?
            .into_any()
            .try_iter()
            .map(|names| names.into_any())
    }

    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(
            py,
            self.places
                .iter()
                .map(|place| PyBytes::new(py, self.name_at(place))),
        )
    }

    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(
            py,
            self.places
                .iter()
                .map(|place| PyBytes::new(py, self.value_at(place))),
        )
    }

    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let lines = self.places.iter().map(|place| {
            (
                PyBytes::new(py, self.name_at(place)),
                PyBytes::new(py, self.value_at(place)),
            )
        });
        PyList::new(py, lines)
    }
}

/// Reads plain requests. The limits are those of the Python function.
#[pyclass(frozen, module = "holdfast_native")]
pub struct HeadReader {
    head_bytes_max: usize,
    headers_max: usize,
    length_digits_max: usize,
    other_paths: Vec<Vec<u8>>,
    left_out: HashSet<Vec<u8>>,
}

#[pymethods]
impl HeadReader {
    #[new]
    #[pyo3(signature = (*, head_bytes_max, headers_max, length_digits_max, other_paths, left_out))]
    fn new(
        head_bytes_max: usize,
        headers_max: usize,
        length_digits_max: usize,
        other_paths: Vec<Vec<u8>>,
        left_out: HashSet<Vec<u8>>,
    ) -> Self {
        Self {
            head_bytes_max,
            headers_max,
            length_digits_max,
            other_paths,
            left_out,
        }
    }

    /// Target, headers and body of the one whole request that `data` consists of, else None.
    fn read<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some((target, headers, body)) = self.parts(data) else {
            return Ok(None);
        };
        let target = PyBytes::new(py, target);
        let body = PyBytes::new(py, body);
        (target, headers, body).into_pyobject(py).map(Some)
    }
}

impl HeadReader {
    fn parts<'a>(&self, data: &'a [u8]) -> Option<(&'a [u8], Headers, &'a [u8])> {
        let mut begin = line_end(data, 0)?;
        let target = self.target(&data[..begin])?;
        begin += 2;
        let mut names = Vec::with_capacity(256);
        let mut places: Vec<Place> = Vec::with_capacity(16);
        let end = loop {
            let end = line_end(data, begin)?;
            if end == begin {
                break end;
            }
            if end - 2 > self.head_bytes_max || places.len() == self.headers_max {
                return None;
            }
            let (name_end, value) = self.line(&data[begin..end], &mut names)?;
            let first = names.len() - name_end;
            names.push(b'\n');
            let name = (first as u32, (names.len() - 1) as u32);
            let value = ((begin + value.0) as u32, (begin + value.1) as u32);
            places.push(Place { name, value });
            begin = end + 2;
        };
        if end < 2 || end - 2 > self.head_bytes_max || places.is_empty() {
            return None;
        }
        let headers = Headers {
            head: data[..end].to_vec(),
            names,
            places,
        };
        for (at, place) in headers.places.iter().enumerate() {
            let name = headers.name_at(place);
            if headers.places[..at]
                .iter()
                .any(|earlier| headers.name_at(earlier) == name)
            {
                return None; // a header came twice
            }
        }
        headers.value(b"host")?;
        let length = headers.value(b"content-length")?;
        if length.is_empty() || length.len() > self.length_digits_max {
            return None;
        }
        let size = length.iter().try_fold(0, |size: usize, digit| {
            digit
                .is_ascii_digit()
                .then(|| 10 * size + (digit - b'0') as usize)
        })?;
        let body = &data[end + 2..];
        if size != body.len() {
            return None;
        }
        Some((target, headers, body))
    }

    fn target<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        let rest = line.strip_prefix(b"POST ")?;
        let target = rest.strip_suffix(b" HTTP/1.1")?;
        let is_read = |byte: &u8| (b'!'..=b'~').contains(byte) && *byte != b'#';
        if target.first() != Some(&b'/') || !target.iter().all(is_read) {
            return None;
        }
        let is_other = self.other_paths.iter().any(|path| target.starts_with(path));
        (!is_other).then_some(target)
    }

    /// Adds a header's name to `names`; its length, and the place of its value in the line.
    fn line(&self, line: &[u8], names: &mut Vec<u8>) -> Option<(usize, (usize, usize))> {
        let colon = line.iter().position(|byte| *byte == b':')?;
        if colon == 0 || colon > NAME_BYTES_MAX || line.get(colon + 1) != Some(&b' ') {
            return None;
        }
        let first = names.len();
        for byte in &line[..colon] {
            if !is_of_token(*byte) {
                return None;
            }
            names.push(byte.to_ascii_lowercase());
        }
        if self.left_out.contains(&names[first..]) {
            return None;
        }
        let mut value = (colon + 2, line.len());
        if !line[value.0..]
            .iter()
            .all(|byte| (0x20..0x7f).contains(byte))
        {
            return None;
        }
        while value.0 < value.1 && line[value.0] == b' ' {
            value.0 += 1;
        }
        while value.0 < value.1 && line[value.1 - 1] == b' ' {
            value.1 -= 1;
        }
        Some((colon, value))
    }
}

fn line_end(data: &[u8], begin: usize) -> Option<usize> {
    let length = data[begin..].iter().position(|byte| *byte == b'\r')?;
    let end = begin + length;
    (data.get(end + 1) == Some(&b'\n')).then_some(end)
}

fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+.^_`|~-".contains(&byte)
}
