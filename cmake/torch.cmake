# SPDX-License-Identifier: BSD-3-Clause
# Imported target torch::cpu (libtorch_cpu and libc10), torch_folder and torch_version: of LibTorch in TORCH_FOLDER if
# that is set, else of ${Python_EXECUTABLE}'s torch.
#
# Not find_package(Torch): for a CUDA build of torch it demands a CUDA toolkit, and with one installed an
# older NCCL may be linked in place of torch's own.
set(TORCH_FOLDER "" CACHE PATH "Folder of LibTorch; empty: the torch of Python_EXECUTABLE")
if(TORCH_FOLDER)
    set(torch_folder ${TORCH_FOLDER})
else()
    find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
    execute_process(
        COMMAND
            ${Python_EXECUTABLE} -c
            "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"
        OUTPUT_VARIABLE torch_folder
        OUTPUT_STRIP_TRAILING_WHITESPACE
        RESULT_VARIABLE failed
    )
    if(failed)
        message(FATAL_ERROR "${Python_EXECUTABLE} has no torch; name one that has: -DPython_EXECUTABLE=...")
    endif()
endif()

if(EXISTS ${torch_folder}/version.py)
    file(STRINGS ${torch_folder}/version.py torch_version REGEX "^__version__")
else()
    file(STRINGS ${torch_folder}/build-version torch_version)
endif()
string(REGEX MATCH "[0-9]+\\.[0-9]+[^' ]*" torch_version "${torch_version}")

foreach(name IN ITEMS c10 torch_cpu)
    add_library(torch::${name} SHARED IMPORTED)
    set_target_properties(torch::${name} PROPERTIES IMPORTED_LOCATION ${torch_folder}/lib/lib${name}.so)
endforeach()

add_library(torch::cpu INTERFACE IMPORTED)
target_link_libraries(torch::cpu INTERFACE torch::torch_cpu torch::c10)
target_compile_definitions(torch::c10 INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_include_directories(
    torch::c10
    SYSTEM
    INTERFACE ${torch_folder}/include ${torch_folder}/include/torch/csrc/api/include
)
if(EXISTS ${torch_folder}/lib/libtorch_cuda.so)
    # The CUDA build's libtorch_cpu needs libraries from other wheels, which the loader finds by rpath.
    target_link_options(torch::cpu INTERFACE -Wl,--allow-shlib-undefined)
endif()

# torch::c10_cuda: where torch is a CUDA build and CUDA's headers are found, in CUDA_HOME, in the wheels that torch
# brings, or in a toolkit. Nothing else of CUDA is linked: libc10_cuda brings the runtime that torch was made for.
option(TORCHLMS_CUDA "Support GPUs where torch and CUDA's headers allow" ON)
if(TORCHLMS_CUDA AND EXISTS ${torch_folder}/lib/libc10_cuda.so)
    file(GLOB wheel_includes ${torch_folder}/../nvidia/*/include)
    find_path(
        cuda_include
        cuda_runtime_api.h
        PATHS $ENV{CUDA_HOME}/include ${wheel_includes} /usr/local/cuda/include
        NO_DEFAULT_PATH
    )
    if(cuda_include)
        add_library(torch::c10_cuda SHARED IMPORTED)
        set_target_properties(torch::c10_cuda PROPERTIES IMPORTED_LOCATION ${torch_folder}/lib/libc10_cuda.so)
        target_include_directories(torch::c10_cuda SYSTEM INTERFACE ${cuda_include})
        target_link_options(torch::c10_cuda INTERFACE -Wl,--allow-shlib-undefined)
    endif()
endif()
