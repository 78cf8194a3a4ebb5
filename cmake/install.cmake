# SPDX-License-Identifier: BSD-3-Clause
# `cmake --install`: the layout that the wheel has inside torchlms/, so that one TorchLMSConfig.cmake fits both.
set(library_name libtorchlms.so.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(torch_hint ${torch_folder})
foreach(file IN ITEMS TorchLMSConfig TorchLMSConfigVersion)
    configure_file(cmake/${file}.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/${file}.cmake @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${file}.cmake DESTINATION share/cmake/TorchLMS)
endforeach()
install(TARGETS torchlms LIBRARY DESTINATION lib)
if(TARGET torchlms_cuda)
    install(TARGETS torchlms_cuda LIBRARY DESTINATION lib)
endif()
install(DIRECTORY include/torchlms DESTINATION include)
