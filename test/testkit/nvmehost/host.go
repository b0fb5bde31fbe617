// Package nvmehost is an NVMe/TCP host in user space, for tests against real
// targets: one admin queue and one I/O queue, without digests, authentication,
// TLS and keep alive. See the NVMe/TCP transport and NVMe base specifications.
package nvmehost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// Options describe a connection.
type Options struct {
	Address netip.AddrPort
	NQN     string
	HostNQN string
	HostID  [16]byte
	Source  netip.Addr // zero: the kernel's choice
}

// Host is connected to the namespace 1 of a subsystem.
type Host struct {
	Controller uint16 // its id
	admin, io  *queue
	block      int64 // its size
}

const (
	opFlush, opWrite, opRead, opIdentify, opFabrics = 0x00, 0x01, 0x02, 0x06, 0x7f
	fabricsPropertySet, fabricsConnect              = 0x00, 0x01
	fabricsPropertyGet                              = 0x04
	propertyCC, propertyCSTS                        = 0x14, 0x1c
	ccEnable                                        = 0x00460001 // entries of 64 and 16 bytes
	ccShutdown                                      = 0x00464001
	cstsReady                                       = 1
	maxTransfer                                     = 128 << 10
)

// Connect connects a host. The error is a Status if the target refuses it.
func Connect(ctx context.Context, o Options) (*Host, error) {
	h := &Host{}
	if err := h.connect(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("connect %s to %s at %s: %w", o.HostNQN, o.NQN, o.Address, err), h.hangUp())
	}
	return h, nil
}

func (h *Host) connect(ctx context.Context, o Options) (err error) {
	if h.admin, err = dial(ctx, o.Source, o.Address); err != nil {
		return err
	}
	id, err := h.admin.connect(o, 0, 0xffff)
	if err != nil {
		return err
	}
	h.Controller = id
	if err := h.admin.setProperty(propertyCC, ccEnable); err != nil {
		return fmt.Errorf("enable the controller: %w", err)
	}
	if err := h.ready(ctx); err != nil {
		return err
	}
	if h.io, err = dial(ctx, o.Source, o.Address); err != nil {
		return err
	}
	if _, err := h.io.connect(o, 1, id); err != nil {
		return fmt.Errorf("connect the I/O queue: %w", err)
	}
	_, err = h.Size()
	return err
}

// connect connects a queue, and returns the id of the controller.
func (q *queue) connect(o Options, id, controller uint16) (uint16, error) {
	c := fabrics(fabricsConnect)
	c.put16(42, id)
	c.put16(44, 31) // entries minus one
	data := make([]byte, 1024)
	copy(data, o.HostID[:])
	binary.LittleEndian.PutUint16(data[16:], controller)
	copy(data[256:511], o.NQN)
	copy(data[512:767], o.HostNQN)
	result, err := q.do(c, data, nil)
	return uint16(result), err
}

func fabrics(kind byte) (c command) {
	c[0], c[4] = opFabrics, kind
	return c
}

func (q *queue) setProperty(offset uint32, value uint64) error {
	c := fabrics(fabricsPropertySet)
	c.put32(44, offset)
	c.put64(48, value)
	_, err := q.do(c, nil, nil)
	return err
}

// ready waits until the controller is ready.
func (h *Host) ready(ctx context.Context) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		c := fabrics(fabricsPropertyGet)
		c.put32(44, propertyCSTS)
		status, err := h.admin.do(c, nil, nil)
		if err != nil || status&cstsReady != 0 {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the controller is not ready: status %#x: %w", status, context.Cause(ctx))
		}
	}
}

// Size returns the current size of the namespace.
func (h *Host) Size() (int64, error) {
	c := command{0: opIdentify, 4: 1}
	b := make([]byte, 4096)
	if _, err := h.admin.do(c, nil, b); err != nil {
		return 0, fmt.Errorf("identify the namespace: %w", err)
	}
	exponent := b[128+4*int(b[26]&0xf)+2] // of the block size, in the format in use
	if exponent < 9 || exponent > 16 {
		return 0, fmt.Errorf("the target has no namespace 1, or its blocks have 2^%d bytes", exponent)
	}
	h.block = 1 << exponent
	return int64(binary.LittleEndian.Uint64(b)) * h.block, nil
}

// Alive reads a block: it reports whether the target still serves this session.
func (h *Host) Alive() bool { return h.transfer(opRead, make([]byte, h.block), 0) == nil }

// ReadAt implements io.ReaderAt.
func (h *Host) ReadAt(p []byte, offset int64) (int, error) {
	size, err := h.Size()
	if err != nil {
		return 0, err
	}
	n := min(int64(len(p)), max(size-offset, 0))
	start := offset / h.block * h.block
	b := make([]byte, (offset+n-start+h.block-1)/h.block*h.block)
	if err := h.transfer(opRead, b, start); err != nil {
		return 0, err
	}
	copy(p[:n], b[offset-start:])
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// WriteAt implements io.WriterAt.
func (h *Host) WriteAt(p []byte, offset int64) (int, error) {
	start := offset / h.block * h.block
	b := make([]byte, (offset-start+int64(len(p))+h.block-1)/h.block*h.block)
	if len(b) != len(p) {
		if err := h.transfer(opRead, b, start); err != nil {
			return 0, err
		}
	}
	copy(b[offset-start:], p)
	if err := h.transfer(opWrite, b, start); err != nil {
		return 0, err
	}
	return len(p), nil
}

// transfer reads or writes whole blocks.
func (h *Host) transfer(op byte, b []byte, offset int64) error {
	for len(b) > 0 {
		part := b[:min(len(b), maxTransfer)]
		c := command{0: op, 4: 1}
		c.put64(40, uint64(offset/h.block))
		c.put16(48, uint16(int64(len(part))/h.block-1))
		var err error
		if op == opWrite {
			_, err = h.io.do(c, part, nil)
		} else {
			_, err = h.io.do(c, nil, part)
		}
		if err != nil {
			return fmt.Errorf("command %#x of %d bytes at %d: %w", op, len(part), offset, err)
		}
		b, offset = b[len(part):], offset+int64(len(part))
	}
	return nil
}

// Sync flushes the namespace.
func (h *Host) Sync() error {
	_, err := h.io.do(command{0: opFlush, 4: 1}, nil, nil)
	return err
}

// Close shuts the controller down, if its connection still exists, and
// disconnects.
func (h *Host) Close() error {
	_ = h.admin.setProperty(propertyCC, ccShutdown)
	return h.hangUp()
}

func (h *Host) hangUp() error {
	var failed error
	for _, q := range []*queue{h.io, h.admin} {
		if q != nil {
			failed = errors.Join(failed, q.conn.Close())
		}
	}
	return failed
}
