//! Tests of headers and layouts.

use super::*;

fn header(request: u32, flags: u32, size: u32) -> Result<Header, Broken> {
    let mut bytes = [0; HEADER];
    bytes.copy_from_slice(RawHeader { request, flags, size }.as_bytes());
    Header::parse(bytes)
}

#[test]
fn a_header_is_checked_before_its_body_is_received() {
    assert_eq!(header(1, 1, 0), Ok(Header { request: 1, need_reply: false, len: 0 }));
    assert_eq!(header(5, 9, 268), Ok(Header { request: 5, need_reply: true, len: 268 }));
    for version in [0, 2, 3] {
        assert_eq!(header(1, version, 0), Err(Broken::Version { request: 1, version }));
    }
    assert_eq!(header(1, 5, 0), Err(Broken::ReplyFlag { request: 1 }));
    for size in [269, u32::MAX] {
        assert_eq!(header(24, 1, size), Err(Broken::LongBody { request: 24, size }));
    }
}

#[test]
fn bodies_have_the_lengths_of_the_specification() {
    assert_eq!([size_of::<StateBody>(), size_of::<AddrBody>(), size_of::<TableBody>()], [8, 40, 8]);
    assert_eq!([size_of::<RegionBody>(), size_of::<SingleRegionBody>(), size_of::<ConfigBody>()], [32, 40, 12]);
    assert_eq!((size_of::<InflightBody>(), MAX_BODY), (24, 268));
}

#[test]
fn requests_are_named_by_their_numbers() {
    let named = [
        (req::GET_FEATURES, "GET_FEATURES"),
        (req::GET_VRING_BASE, "GET_VRING_BASE"),
        (req::SET_BACKEND_REQ_FD, "SET_BACKEND_REQ_FD"),
        (req::SET_CONFIG, "SET_CONFIG"),
        (req::SET_INFLIGHT_FD, "SET_INFLIGHT_FD"),
        (req::RESET_DEVICE, "RESET_DEVICE"),
        (req::REM_MEM_REG, "REM_MEM_REG"),
        (req::GET_STATUS, "GET_STATUS"),
    ];
    named.iter().for_each(|(request, name)| assert_eq!(request_name(*request), *name));
    assert_eq!(request_name(u32::MAX), "a request with an unknown number");
    let text = Broken::Unsupported { request: 41 }.to_string();
    assert_eq!(text, "GET_SHARED_OBJECT is not supported");
}
