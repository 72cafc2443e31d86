"""Lets SGLang's own modules of the request path be imported without a GPU.

install(ROOT) makes ROOT, an unpacked wheel, the package sglang, and puts stand-ins
in the place of what is not there: torch and the rest of the GPU runtime, and those
sub-packages of SGLang's own that hold models and kernels. What is left is what runs
for a request between HTTP and the scheduler's sockets, unchanged: io_struct and its
codec, the sampling parameters with their validation, TokenizerManager, the HTTP
server.
"""

import enum
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import typing

# Packages that stand-ins are made of when they are not installed.
THIRD = """torch torchvision torchaudio transformers tokenizers huggingface_hub safetensors triton flashinfer flash_attn
sgl_kernel deep_gemm xgrammar outlines llguidance compressed_tensors torchao gguf openai openai_harmony tiktoken
sentencepiece einops interegular partial_json_parser pybase64 xxhash scipy pandas soundfile decord decord2 av cv2 IPython
ray grpc smg_grpc_proto smg_grpc_servicer opentelemetry mooncake torch_memory_saver tqdm filelock dill watchfiles anthropic
nvidia pynvml py_spy cuda quack apache_tvm_ffi tvm_ffi modelscope datasets PIL setproctitle cloudpickle blobfile
sgl_fa4 sglang_kernel mistral_common timm hf_transfer msgpack zstandard nixl lark jinja2 regex packaging rpds blake3""".split()

# Of SGLang's own, what never runs for a request.
OWN = """configs layers model_executor mem_cache distributed speculative hardware_backend model_loader models multimodal
constrained platforms disaggregation.encode_receiver utils.hf_transformers utils.hf_transformers_utils beam_search.coordinator beam_search.group
managers.schedule_batch managers.mm_utils managers.multimodal_processor managers.scheduler managers.detokenizer_manager
managers.data_parallel_controller kernel_plugins eplb elastic_ep state_capturer weight_cache lora.layers""".split()
OWN = ["sglang.srt." + name for name in OWN] + ["sglang.jit_kernel", "sglang.kernels", "sglang.multimodal_gen", "sglang.lang",
                                                "sglang.test"]


class Meta(type):
    """Makes the stand-in bear what modules do with names while they are loaded."""

    def __getattr__(cls, name):
        if name.startswith("__") and name not in ("__version__",):
            raise AttributeError(name)
        return stand_in(name)

    def __getitem__(cls, item):
        return cls

    def __or__(cls, other):
        return typing.Any

    __ror__ = __or__

    def __iter__(cls):
        return iter(())

    def __bool__(cls):
        return False

    def __lt__(cls, other):
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __call__(cls, *args, **kwargs):
        if cls is not Stand and not cls.__dict__.get("_stub"):
            return super().__call__(*args, **kwargs)  # a class of SGLang's derived from one
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]  # a decorator
        return stand_in("called")


class Stand(metaclass=Meta):
    def __init__(self, *args, **kwargs):
        pass

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        from pydantic_core import core_schema

        return core_schema.any_schema()


def stand_in(name):
    return Meta(name, (Stand,), {"_stub": True})


class Module(types.ModuleType):
    __version__ = "99.0.0"
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__") or (self.__name__, name) in ABSENT:
            raise AttributeError(name)
        value = stand_in(name)
        setattr(self, name, value)
        return value


# What is looked for with hasattr, and believed.
ABSENT = {("torch", "npu")}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = set(names)

    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        if any(".".join(parts[:n]) in self.names for n in range(1, len(parts) + 1)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        fill = FILL.get(module.__name__)
        if fill:
            fill(module)


def torch(module):
    class Tensor:
        pass

    module.Tensor = Tensor
    for name in ("dtype", "device", "Size", "Generator"):
        setattr(module, name, type(name, (), {}))
    for name in ("float16", "bfloat16", "float32", "int32", "int64", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"):
        setattr(module, name, type(name, (), {}))
    no = types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
    for name in ("cuda", "xpu", "mps", "hpu", "musa"):
        setattr(module, name, no)
    limits = types.SimpleNamespace(max=1.0, min=-1.0, eps=0.1)
    module.finfo = module.iinfo = lambda kind: limits
    module.version = types.SimpleNamespace(cuda=None, hip=None)
    module.backends = types.SimpleNamespace(mps=no)
    module.distributed = types.SimpleNamespace(is_initialized=lambda: False, is_available=lambda: False)


def schedule_batch(module):
    """The types that the wire's structures have from here."""
    import msgspec

    module.ReturnHiddenStatesMode = typing.Union[bool, typing.Literal["last"]]
    module.SamplingLogprobsMode = typing.Literal["selected", "support"]
    module.Modality = enum.Enum("Modality", ["IMAGE", "MULTI_IMAGES", "VIDEO", "AUDIO"])
    module.MultimodalProcessorOutput = msgspec.defstruct("MultimodalProcessorOutput", [("mm_items", list, [])], array_like=True)
    module.MultimodalDataItem = msgspec.defstruct("MultimodalDataItem", [("modality", typing.Any, None)], array_like=True)
    module.get_return_hidden_states_mode = lambda value: value


FILL = {"torch": torch, "sglang.srt.managers.schedule_batch": schedule_batch}


def install(root):
    names = [n for n in THIRD if n in ("torch", "transformers") or importlib.util.find_spec(n) is None]
    sys.meta_path.insert(0, Finder(names + OWN))
    package = types.ModuleType("sglang")  # its own __init__ imports the language front end
    package.__path__ = [str(root) + "/sglang"]
    sys.modules["sglang"] = package
