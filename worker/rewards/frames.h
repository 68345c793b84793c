// Messages over a socket, one after the other: four bytes of length, little-endian, and the
// message.
#pragma once

#include <google/protobuf/message.h>

namespace tessera {

// Of a stream socket. Both take up what signals interrupt.

// False: the other side is gone.
bool send_frame(int socket, const google::protobuf::Message& message);

// False: the other side is gone. Throws std::runtime_error: what came is no such message.
bool receive_frame(int socket, google::protobuf::Message& message);

}  // namespace tessera
