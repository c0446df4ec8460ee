"""Inductor for an H200 on a machine without a GPU: what `ptx_networks.py --compile-only` compiles with.

Nothing is launched. PyTorch and Triton are told what the GPU would say of itself, tensors are without memory, and kernels are compiled but not
loaded. This reaches into both as far as it has to, and may break with another version; runs on a GPU do not use it."""

import types

GPU = {
    "name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024, "warp_size": 32, "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10, "shared_memory_per_multiprocessor": 228 << 10, "L2_cache_size": 60 << 20,
    "total_memory": 141 << 30, "gcnArchName": "", "uuid": "",
}


class Driver:
    """What Triton asks of the GPU."""

    utils = types.SimpleNamespace(
        get_device_properties=lambda device: {
            "max_shared_mem": 227 << 10, "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32,
        }
    )

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_active_torch_device(self):
        import torch

        return torch.device("cuda", 0)


def pretend():
    """Answers for the GPU that is not there."""
    import torch
    import triton
    import torch._inductor.runtime.triton_heuristics as heuristics
    import torch._inductor.runtime.triton_helpers as helpers
    import torch._subclasses.fake_tensor as fake
    from torch._dynamo import device_interface

    gpu = types.SimpleNamespace(**GPU)
    answers = {
        "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "get_device_properties": lambda device=None: gpu, "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: gpu.name, "synchronize": lambda device=None: None, "_lazy_init": lambda: None,
        "_exchange_device": lambda device: 0, "_maybe_exchange_device": lambda device: 0,
        "get_rng_state": lambda *device: torch.zeros(16, dtype=torch.uint8), "set_rng_state": lambda *state: None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
        if hasattr(device_interface.CudaInterface, name):
            setattr(device_interface.CudaInterface, name, staticmethod(answer))
    for name in ("get_device_properties", "current_device"):
        setattr(device_interface.CudaInterface.Worker, name, staticmethod(answers[name]))
    fake.init_gpu_context = lambda device: None
    triton.runtime.driver.set_active(Driver())
    helpers.set_driver_to_gpu = lambda: None
    heuristics.CachingAutotuner._make_launchers = lambda kernel: None
    heuristics.CachingAutotuner._dynamic_scale_rblock = lambda kernel: None


def compiled(name, configure):
    """The code that Inductor makes of a network; its kernels have been compiled and assembled."""
    import torch
    from torch._functorch.aot_autograd import aot_export_module
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode

    pretend()
    codes = configure()
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    import triton_networks

    network, given = triton_networks.made(name)
    mode = FakeTensorMode()

    def like(tensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")

    with torch.no_grad(), mode:
        for module in network.modules():
            for key, value in module._parameters.items():
                if value is not None:
                    module._parameters[key] = torch.nn.Parameter(like(value), requires_grad=False)
            for key, value in module._buffers.items():
                if value is not None:
                    module._buffers[key] = like(value)
        forward = network.forward
        network.forward = lambda given: (forward(given),)
        graph, _ = aot_export_module(network, [like(given)], trace_joint=False, decompositions=select_decomp_table())
        inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    with torch.no_grad(), tracing(TracingContext(mode)):
        compile_fx_inner(graph, inputs)
    return codes
