// Package nbd serves a block device to QEMU or another client over the network
// block device protocol. It includes a small client for tests.
//
// It supports what QEMU uses: the fixed newstyle handshake without TLS, the
// options EXPORT_NAME, ABORT, LIST, INFO and GO, simple replies, and the
// commands READ, WRITE, DISC, FLUSH, TRIM and WRITE_ZEROES with FUA. Section
// names in comments refer to doc/proto.md of
// https://github.com/NetworkBlockDevice/nbd (commit 89ba7b53795, 2026-05).
package nbd

import "strconv"

// Geometry describes a device to clients, in bytes.
type Geometry struct {
	Size   int64
	Sector uint32 // minimum block size: unit of offsets and lengths
	Block  uint32 // preferred block size
}

// Device is a block device to serve. Its methods are safe for concurrent use.
type Device interface {
	Geometry() Geometry
	// Mark is called when a request arrives; its result is passed to Do in
	// Request.Mark. A write that was answered before the client sent this
	// request was answered before Mark. Mark must not block.
	Mark() uint64
	// Do executes a valid request: aligned to sectors and within the device.
	// Requests of one client arrive in order.
	Do(Request) Answer
	// Answered is called after Do's answer was sent, before the client's next
	// request is handled.
	Answered(Request)
	// Gone is closed when the device loses power: it stops answering, but
	// client connections stay open.
	Gone() <-chan struct{}
}

// Request is a command of a client.
type Request struct {
	Command Command
	FUA     bool // the data is durable before the answer
	NoHole  bool // WriteZeroes must keep the space allocated
	Offset  uint64
	Length  uint32
	Data    []byte // of a Write; the device can keep a reference
	Mark    uint64 // see Device

	cookie  uint64
	flags   uint16
	refused Errno // protocol error of an invalid request
}

// Answer is the reply to a request; Data is set for a successful Read.
type Answer struct {
	Data  []byte
	Error Errno
}

// Command is the type of a request ("Request types").
type Command uint16

// Supported commands. Disconnect is not passed to devices.
const (
	Read        Command = 0
	Write       Command = 1
	Disconnect  Command = 2
	Flush       Command = 3
	Trim        Command = 4
	WriteZeroes Command = 6
)

func (c Command) String() string {
	switch c {
	case Read:
		return "read"
	case Write:
		return "write"
	case Disconnect:
		return "disconnect"
	case Flush:
		return "flush"
	case Trim:
		return "trim"
	case WriteZeroes:
		return "write zeroes"
	}
	return "command " + strconv.Itoa(int(c))
}

// Errno is an error of the protocol ("Error values"); zero is success.
type Errno uint32

const (
	OK     Errno = 0
	EIO    Errno = 5
	EINVAL Errno = 22
	ENOSPC Errno = 28
)

func (e Errno) Error() string {
	switch e {
	case OK:
		return "success"
	case EIO:
		return "device error EIO"
	case EINVAL:
		return "device error EINVAL"
	case ENOSPC:
		return "device error ENOSPC"
	}
	return "device error " + strconv.Itoa(int(e))
}

// Limits of one message, in bytes ("Size constraints").
const (
	// MaxPayload is the largest read or write, as announced to the client.
	MaxPayload = 4 << 20
	// maxSkipped is the longest invalid message data that is skipped; longer
	// data closes the connection.
	maxSkipped = 32 << 20
	// maxOption fits the longest export name (4096) with 1000 information
	// requests.
	maxOption = 8 << 10
)

// Magic numbers ("Reserved Magic values").
const (
	magicInit    uint64 = 0x4e42444d41474943 // NBDMAGIC
	magicOption  uint64 = 0x49484156454f5054 // IHAVEOPT
	magicReply   uint64 = 0x0003e889045565a9
	magicRequest uint32 = 0x25609513
	magicSimple  uint32 = 0x67446698
)

// Handshake flags and client flags: the same bits.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// Transmission flags. CAN_MULTI_CONN is left out: one guest has one connection.
const (
	flagHasFlags        = 1 << 0
	flagSendFlush       = 1 << 2
	flagSendFUA         = 1 << 3
	flagSendTrim        = 1 << 5
	flagSendWriteZeroes = 1 << 6

	transmissionFlags uint16 = flagHasFlags | flagSendFlush | flagSendFUA | flagSendTrim | flagSendWriteZeroes
)

// Command flags.
const (
	flagFUA    = 1 << 0
	flagNoHole = 1 << 1
)

// Option types.
const (
	optExportName uint32 = 1
	optAbort      uint32 = 2
	optList       uint32 = 3
	optInfo       uint32 = 6
	optGo         uint32 = 7
)

// Option reply types.
const (
	repAck    uint32 = 1
	repServer uint32 = 2
	repInfo   uint32 = 3

	repErrUnsupported uint32 = 1<<31 + 1
	repErrInvalid     uint32 = 1<<31 + 3
	repErrUnknown     uint32 = 1<<31 + 6
	repErrTooBig      uint32 = 1<<31 + 9
)

// Information types.
const (
	infoExport    uint16 = 0
	infoBlockSize uint16 = 3
)
