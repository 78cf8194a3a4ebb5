# SPDX-License-Identifier: BSD-3-Clause

# Sets <group>_sources in the caller for every [group] of the list; a change of the list configures anew.
function(read_sources list_file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list_file})
    file(STRINGS ${list_file} lines REGEX "^[^#]")
    foreach(line IN LISTS lines)
        if(line MATCHES "^\\[(.*)\\]$")
            set(group ${CMAKE_MATCH_1})
            list(APPEND groups ${group})
        else()
            list(APPEND ${group}_sources ${line})
        endif()
    endforeach()
    foreach(group IN LISTS groups)
        set(${group}_sources ${${group}_sources} PARENT_SCOPE)
    endforeach()
endfunction()
