//! Copies between host and device, and what else moves bytes.

use super::{Rule, Subject, enforced, passed};

pub(super) const COPIES: Subject = Subject {
    name: "Copies",
    about: "Copies over the link between host and device share it fairly: large ones are cut into packets that wait for \
            their turn, small ones go at once and are counted.",
    rules: &RULES,
};

const RULES: [Rule; 10] = [
    enforced(
        &[
            "cuMemcpy",
            "cuMemcpyAsync",
            "cuMemcpyDtoH",
            "cuMemcpyDtoHAsync",
            "cuMemcpyHtoD",
            "cuMemcpyHtoDAsync",
            "cuMemcpy2D",
            "cuMemcpy2DAsync",
            "cuMemcpy2DUnaligned",
            "cuMemcpy3D",
            "cuMemcpy3DAsync",
        ],
        "between host and device: counted, and cut into packets above a size that the node sets; not in streams under capture, \
         of managed memory, or of rows in pageable memory",
    ),
    passed(
        &[
            "cuMemcpyDtoH_v1",
            "cuMemcpyDtoHAsync_v1",
            "cuMemcpyHtoD_v1",
            "cuMemcpyHtoDAsync_v1",
            "cuMemcpy2D_v1",
            "cuMemcpy2DAsync_v1",
            "cuMemcpy2DUnaligned_v1",
            "cuMemcpy3D_v1",
            "cuMemcpy3DAsync_v1",
        ],
        "the versions with addresses of 32 bits, which cannot name memory of today's devices",
    ),
    enforced(
        &["cuMemcpyDtoD", "cuMemcpyDtoDAsync"],
        "within the device: uses no link. Where launches are decided about, a launch like others; a best-effort tenant's goes in pieces of \
         64 MiB, but not where its ranges overlap or its stream is under capture",
    ),
    passed(
        &["cuMemcpyDtoD_v1", "cuMemcpyDtoDAsync_v1"],
        "the versions with addresses of 32 bits, which cannot name memory of today's devices",
    ),
    passed(
        &["cuMemcpyAtoA", "cuMemcpyAtoD", "cuMemcpyDtoA"],
        "within the device, from or to one-dimensional arrays: uses no link and waits for no turn; arrays are rare outside graphics",
    ),
    passed(
        &["cuMemcpyAtoH", "cuMemcpyAtoHAsync", "cuMemcpyHtoA", "cuMemcpyHtoAAsync"],
        "between host and one-dimensional arrays: not cut; arrays are rare outside graphics, and copies into them small",
    ),
    passed(
        &[
            "cuMemcpyPeer",
            "cuMemcpyPeerAsync",
            "cuMemcpy3DPeer",
            "cuMemcpy3DPeerAsync",
            "cuFabricCpyBatchAsync",
        ],
        "between devices: a node shares one device, and the link to the host is not used where devices reach each other",
    ),
    passed(
        &[
            "cuMemcpyBatchAsync",
            "cuMemcpy3DBatchAsync",
            "cuMemcpyWithAttributesAsync",
            "cuMemcpy3DWithAttributesAsync",
        ],
        "not cut: their copies go to the driver as they are",
    ),
    passed(
        &[
            "cuMemsetD8_v1",
            "cuMemsetD16_v1",
            "cuMemsetD32_v1",
            "cuMemsetD2D8_v1",
            "cuMemsetD2D16_v1",
            "cuMemsetD2D32_v1",
        ],
        "the versions with addresses of 32 bits, which cannot name memory of today's devices",
    ),
    enforced(
        &[
            "cuMemsetD8",
            "cuMemsetD8Async",
            "cuMemsetD16",
            "cuMemsetD16Async",
            "cuMemsetD32",
            "cuMemsetD32Async",
            "cuMemsetD2D8",
            "cuMemsetD2D8Async",
            "cuMemsetD2D16",
            "cuMemsetD2D16Async",
            "cuMemsetD2D32",
            "cuMemsetD2D32Async",
        ],
        "fills memory on the device and uses no link. Where launches are decided about, a launch like others; a best-effort tenant's in a row \
         goes in pieces of 64 MiB, but not where its stream is under capture",
    ),
];
