// Package nbd serves a block device to QEMU (or any other client) over the
// network block device protocol, and has the small client that the tests of
// such a device need.
//
// Served is what QEMU asks for: the fixed newstyle handshake without TLS, the
// options EXPORT_NAME, ABORT, LIST, INFO and GO, simple replies, and the
// commands READ, WRITE, DISC, FLUSH, TRIM and WRITE_ZEROES with FUA. Source:
// doc/proto.md of https://github.com/NetworkBlockDevice/nbd (commit
// 89ba7b53795, May 2026); its section names stand beside what follows them.
package nbd

import "strconv"

// Geometry is what a client is told of a device, in bytes.
type Geometry struct {
	Size   int64
	Sector uint32 // the unit of requests: offsets and lengths are multiples of it
	Block  uint32 // the unit that costs least
}

// Device is what Serve serves. Its methods may be called from the connections
// of several clients at a time.
type Device interface {
	Geometry() Geometry
	// Mark is called when a request has just come in; what it returns comes
	// back in Request.Mark. A client that had the answer to a write before it
	// sent this request had it before Mark. It must not block.
	Mark() uint64
	// Do carries out a request that has been checked: it is aligned to sectors
	// and lies within the device. The requests of one client come in order.
	Do(Request) Answer
	// Answered is called when Do's answer has gone out, before the same
	// client's next request is looked at.
	Answered(Request)
	// Gone is closed when the device falls silent: nothing is answered any
	// more, and clients are left waiting as by a disk without power.
	Gone() <-chan struct{}
}

// Request is one command of a client.
type Request struct {
	Command Command
	FUA     bool // what is written is durable before the answer
	NoHole  bool // WriteZeroes must not give space back
	Offset  uint64
	Length  uint32
	Data    []byte // of a Write; the device may keep it
	Mark    uint64 // see Device

	cookie  uint64
	flags   uint16
	refused Errno // what the request has been found to break
}

// Answer is the reply to a request; Data is that of a successful Read.
type Answer struct {
	Data  []byte
	Error Errno
}

// Command is the type of a request ("Request types").
type Command uint16

// The commands of the protocol that are served; Disconnect never reaches a
// device.
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

// Errno is an error of the protocol ("Error values"); zero is success. As an
// error it is what the client got for an answer.
type Errno uint32

// The errors that are sent.
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
		return "the device answers EIO"
	case EINVAL:
		return "the device answers EINVAL"
	case ENOSPC:
		return "the device answers ENOSPC"
	}
	return "the device answers error " + strconv.Itoa(int(e))
}

// Limits of one message, in bytes ("Size constraints").
const (
	// MaxPayload is the largest read or write, as the client is told.
	MaxPayload = 4 << 20
	// maxSkipped is the longest data of a message that is too long, or not
	// understood, that is still read past; more is taken for an attack.
	maxSkipped = 32 << 20
	// maxOption is enough for the longest name of an export (4096) with 1000
	// information requests.
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
