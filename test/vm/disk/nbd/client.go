package nbd

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// Client is one connection to a server. It is not safe for concurrent use.
type Client struct {
	Geometry Geometry // as reported by the server

	conn    io.ReadWriteCloser
	in      *bufio.Reader
	last    uint64            // cookie
	pending map[uint64]uint32 // by cookie: length of the answer's data
}

// Dial connects to the Unix socket at path and enters the transmission phase.
// The connection is closed when ctx ends.
func Dial(ctx context.Context, path string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return NewClient(ctx, conn)
}

// NewClient negotiates on an existing connection; see Dial.
func NewClient(ctx context.Context, conn io.ReadWriteCloser) (*Client, error) {
	context.AfterFunc(ctx, func() { conn.Close() })
	c := &Client{conn: conn, in: bufio.NewReader(conn), pending: map[uint64]uint32{}}
	if err := c.negotiate(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("negotiate: %w", err)
	}
	return c, nil
}

// Close closes the connection without Disconnect.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) negotiate() error {
	hello := make([]byte, 18)
	if _, err := io.ReadFull(c.in, hello); err != nil {
		return err
	}
	if binary.BigEndian.Uint64(hello) != magicInit || binary.BigEndian.Uint64(hello[8:]) != magicOption {
		return fmt.Errorf("unexpected server hello %#x", hello)
	}
	message := binary.BigEndian.AppendUint32(nil, flagFixedNewstyle|flagNoZeroes)
	message = binary.BigEndian.AppendUint64(message, magicOption)
	message = binary.BigEndian.AppendUint32(message, optGo)
	data := []byte{0, 0, 0, 0, 0, 1, 0, byte(infoBlockSize)} // empty name, one information request
	message = binary.BigEndian.AppendUint32(message, uint32(len(data)))
	if _, err := c.conn.Write(append(message, data...)); err != nil {
		return err
	}
	for {
		kind, data, err := c.optionReply()
		switch {
		case err != nil:
			return err
		case kind == repAck:
			return nil
		case kind != repInfo:
			return fmt.Errorf("the server replied %#x to GO: %s", kind, data)
		}
		c.learn(data)
	}
}

func (c *Client) optionReply() (kind uint32, data []byte, err error) {
	var header [20]byte
	if _, err := io.ReadFull(c.in, header[:]); err != nil {
		return 0, nil, err
	}
	if magic := binary.BigEndian.Uint64(header[:]); magic != magicReply {
		return 0, nil, fmt.Errorf("reply has magic %#x", magic)
	}
	data = make([]byte, binary.BigEndian.Uint32(header[16:]))
	_, err = io.ReadFull(c.in, data)
	return binary.BigEndian.Uint32(header[12:]), data, err
}

func (c *Client) learn(info []byte) {
	switch {
	case len(info) == 12 && binary.BigEndian.Uint16(info) == infoExport:
		c.Geometry.Size = int64(binary.BigEndian.Uint64(info[2:]))
	case len(info) == 14 && binary.BigEndian.Uint16(info) == infoBlockSize:
		c.Geometry.Sector, c.Geometry.Block = binary.BigEndian.Uint32(info[2:]), binary.BigEndian.Uint32(info[6:])
	}
}

// Do sends a request and waits for its answer; no other request must be in
// flight. An error of the device is an Errno.
func (c *Client) Do(r Request) ([]byte, error) {
	sent, err := c.Send(r)
	if err != nil {
		return nil, err
	}
	got, a, err := c.Receive()
	if err != nil {
		return nil, err
	}
	if got != sent {
		return nil, fmt.Errorf("got an answer to request %d, want %d", got, sent)
	}
	if a.Error != OK {
		return nil, a.Error
	}
	return a.Data, nil
}

// Send sends a request and returns the number that Receive reports for the
// answer. Length is ignored for a Write.
func (c *Client) Send(r Request) (uint64, error) {
	var flags uint16
	if r.FUA {
		flags |= flagFUA
	}
	if r.NoHole {
		flags |= flagNoHole
	}
	if r.Command == Write {
		r.Length = uint32(len(r.Data))
	}
	c.last++
	c.pending[c.last] = 0
	if r.Command == Read {
		c.pending[c.last] = r.Length
	}
	message := binary.BigEndian.AppendUint32(nil, magicRequest)
	message = binary.BigEndian.AppendUint16(message, flags)
	message = binary.BigEndian.AppendUint16(message, uint16(r.Command))
	message = binary.BigEndian.AppendUint64(message, c.last)
	message = binary.BigEndian.AppendUint64(message, r.Offset)
	message = binary.BigEndian.AppendUint32(message, r.Length)
	_, err := c.conn.Write(append(message, r.Data...))
	return c.last, err
}

// Receive waits for the next answer.
func (c *Client) Receive() (uint64, Answer, error) {
	var header [16]byte
	if _, err := io.ReadFull(c.in, header[:]); err != nil {
		return 0, Answer{}, err
	}
	if magic := binary.BigEndian.Uint32(header[:]); magic != magicSimple {
		return 0, Answer{}, fmt.Errorf("answer has magic %#x", magic)
	}
	a := Answer{Error: Errno(binary.BigEndian.Uint32(header[4:]))}
	number := binary.BigEndian.Uint64(header[8:])
	length, asked := c.pending[number]
	if !asked {
		return 0, Answer{}, fmt.Errorf("got an answer to request %d, which is not in flight", number)
	}
	delete(c.pending, number)
	if a.Error == OK && length > 0 {
		a.Data = make([]byte, length)
		if _, err := io.ReadFull(c.in, a.Data); err != nil {
			return 0, Answer{}, err
		}
	}
	return number, a, nil
}
