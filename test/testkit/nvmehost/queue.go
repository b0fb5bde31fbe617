package nvmehost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// PDU types of NVMe/TCP and their flags.
const (
	pduICReq       = 0x00
	pduICResp      = 0x01
	pduCommand     = 0x04
	pduResponse    = 0x05
	pduDataOut     = 0x06
	pduDataIn      = 0x07
	pduReady       = 0x09 // ready to transfer
	flagLast       = 0x04
	flagSuccess    = 0x08 // no response follows the data
	commonHeader   = 8
	commandHeader  = commonHeader + 64
	dataHeader     = 24
	maxPDU         = 1 << 20
	sglInCapsule   = 0x01
	sglTransport   = 0x5a
	inCapsule      = 4096 // what every SPDK accepts in a command
	commandTimeout = 30 * time.Second
)

// command is a submission queue entry.
type command [64]byte

func (c *command) put16(at int, v uint16) { binary.LittleEndian.PutUint16(c[at:], v) }
func (c *command) put32(at int, v uint32) { binary.LittleEndian.PutUint32(c[at:], v) }
func (c *command) put64(at int, v uint64) { binary.LittleEndian.PutUint64(c[at:], v) }

// Status is the status of a command that the target has refused.
type Status uint16

// InvalidHost is the answer to the connect of a host that is not admitted, and
// InvalidParameters, among others, to that of an unknown subsystem.
const (
	InvalidParameters Status = 0x182
	InvalidHost       Status = 0x184
)

func (s Status) Error() string {
	switch s {
	case InvalidHost:
		return "the target refuses the host (status 0x184)"
	case InvalidParameters:
		return "the target refuses the parameters of the connect (status 0x182)"
	}
	return fmt.Sprintf("the target answers with status %#x", uint16(s))
}

// queue is a connection, which is a queue pair. It has one command at a time.
type queue struct {
	mu      sync.Mutex
	conn    net.Conn
	id      uint16 // of the last command
	align   int    // of the data in a command
	maxData int    // in a data PDU
}

func dial(ctx context.Context, source netip.Addr, address netip.AddrPort) (*queue, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), Timeout: commandTimeout}
	conn, err := d.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return nil, err
	}
	q := &queue{conn: conn}
	if err := q.initialize(); err != nil {
		return nil, errors.Join(fmt.Errorf("initialize the connection: %w", err), conn.Close())
	}
	return q, nil
}

// initialize agrees on no digests and one transfer at a time.
func (q *queue) initialize() error {
	if err := q.conn.SetDeadline(time.Now().Add(commandTimeout)); err != nil {
		return err
	}
	if err := q.send(pduICReq, 0, make([]byte, 120), 0, nil); err != nil {
		return err
	}
	kind, _, b, err := q.receive()
	if err != nil {
		return err
	}
	if kind != pduICResp || len(b) < 8 {
		return fmt.Errorf("the target answers with PDU type %#x, not ICResp", kind)
	}
	q.align = 4 * (int(b[2]) + 1)
	q.maxData = int(binary.LittleEndian.Uint32(b[4:]))
	return nil
}

// send sends a PDU; offset is that of the data, 0 without data.
func (q *queue) send(kind, flags byte, header []byte, offset int, data []byte) error {
	b := make([]byte, max(commonHeader+len(header), offset), max(commonHeader+len(header), offset)+len(data))
	b[0], b[1], b[2], b[3] = kind, flags, byte(commonHeader+len(header)), byte(offset)
	copy(b[commonHeader:], header)
	b = append(b, data...)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	_, err := q.conn.Write(b)
	return err
}

// receive returns a PDU without the common header and the padding before data.
func (q *queue) receive() (kind, flags byte, rest []byte, err error) {
	var h [commonHeader]byte
	if _, err := io.ReadFull(q.conn, h[:]); err != nil {
		return 0, 0, nil, err
	}
	length := binary.LittleEndian.Uint32(h[4:])
	if length < uint32(h[2]) || h[2] < commonHeader || length > maxPDU {
		return 0, 0, nil, fmt.Errorf("PDU type %#x has the length %d", h[0], length)
	}
	b := make([]byte, length-commonHeader)
	if _, err := io.ReadFull(q.conn, b); err != nil {
		return 0, 0, nil, err
	}
	if header, data := int(h[2])-commonHeader, int(h[3])-commonHeader; data > header && data <= len(b) {
		b = append(b[:header], b[data:]...)
	}
	return h[0], h[1], b, nil
}

// do executes a command that sends out, or fills in, and returns the result.
func (q *queue) do(c command, out, in []byte) (result uint64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.conn.SetDeadline(time.Now().Add(commandTimeout)); err != nil {
		return 0, err
	}
	q.id++
	c[1] = 0x40 // data is described by an SGL
	c.put16(2, q.id)
	c.put32(32, uint32(len(out)+len(in)))
	c[39] = sglTransport
	offset, now := 0, []byte(nil)
	if len(out) > 0 && len(out) <= inCapsule {
		c[39] = sglInCapsule
		offset, now = (commandHeader+q.align-1)/q.align*q.align, out
	}
	if err := q.send(pduCommand, 0, c[:], offset, now); err != nil {
		return 0, err
	}
	for {
		kind, flags, b, err := q.receive()
		switch {
		case err != nil:
			return 0, err
		case kind == pduResponse && len(b) == 16:
			if s := Status(binary.LittleEndian.Uint16(b[14:]) >> 1 & 0x7ff); s != 0 {
				return 0, s
			}
			return binary.LittleEndian.Uint64(b), nil
		case kind == pduDataIn && len(b) >= dataHeader-commonHeader:
			at, data := binary.LittleEndian.Uint32(b[4:]), b[dataHeader-commonHeader:]
			if uint64(at)+uint64(len(data)) > uint64(len(in)) {
				return 0, fmt.Errorf("the target sends %d bytes at %d of %d", len(data), at, len(in))
			}
			copy(in[at:], data)
			if flags&flagSuccess != 0 {
				return 0, nil
			}
		case kind == pduReady && len(b) == dataHeader-commonHeader:
			if err := q.transfer(b, out); err != nil {
				return 0, err
			}
		default:
			return 0, fmt.Errorf("the target sends PDU type %#x with %d bytes", kind, len(b))
		}
	}
}

// transfer sends the data that the target is ready for.
func (q *queue) transfer(ready, out []byte) error {
	at, n := int(binary.LittleEndian.Uint32(ready[4:])), int(binary.LittleEndian.Uint32(ready[8:]))
	if at+n > len(out) {
		return fmt.Errorf("the target asks for %d bytes at %d of %d", n, at, len(out))
	}
	for n > 0 {
		size, flags := min(n, q.maxData), byte(0)
		if size == n {
			flags = flagLast
		}
		header := make([]byte, dataHeader-commonHeader)
		copy(header, ready[:4]) // the command and the tag of the transfer
		binary.LittleEndian.PutUint32(header[4:], uint32(at))
		binary.LittleEndian.PutUint32(header[8:], uint32(size))
		if err := q.send(pduDataOut, flags, header, dataHeader, out[at:at+size]); err != nil {
			return err
		}
		at, n = at+size, n-size
	}
	return nil
}
