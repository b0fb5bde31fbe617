package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// recordServer is a small storage server: it stores numbered records that clients
// send over TCP, and acknowledges each.
type recordServer struct {
	listener net.Listener
	mu       sync.Mutex
	records  map[string][]uint64 // by address of the client, as they arrived
}

func serveRecords(at string) (*recordServer, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	s := &recordServer{listener: l, records: map[string][]uint64{}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.store(conn)
		}
	}()
	return s, nil
}

func (s *recordServer) store(conn net.Conn) {
	defer conn.Close()
	from := conn.RemoteAddr().(*net.TCPAddr).IP.String()
	for record := make([]byte, 8); ; {
		if _, err := io.ReadFull(conn, record); err != nil {
			return
		}
		s.mu.Lock()
		s.records[from] = append(s.records[from], binary.BigEndian.Uint64(record))
		s.mu.Unlock()
		if _, err := conn.Write(record); err != nil {
			return
		}
	}
}

// of returns the records of a client.
func (s *recordServer) of(from string) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[from]
}

// complete wants the records 1 to last, in order. A client sends one again when it
// got no acknowledgement.
func complete(records []uint64, last int64) error {
	sent := slices.Compact(slices.Clone(records))
	for i, n := range sent {
		if n != uint64(i+1) {
			return fmt.Errorf("record %d came as number %d", n, i+1)
		}
	}
	if int64(len(sent)) != last {
		return fmt.Errorf("%d records were acknowledged, and %d are stored", last, len(sent))
	}
	return nil
}

// recordClient writes one record after the other, each until it is acknowledged.
type recordClient struct {
	*worker
	from, to string
	in       netns
	attempts atomic.Int64 // that failed
	conn     net.Conn
}

// startRecordClient starts a client in a network namespace, with one of its
// addresses.
func startRecordClient(in netns, from, to string) *recordClient {
	c := &recordClient{from: from, to: to, in: in}
	c.worker = startWorker(func(n int64) error {
		for record := binary.BigEndian.AppendUint64(nil, uint64(n)); c.try(record) != nil; c.attempts.Add(1) {
			if c.stopping.Load() {
				return fmt.Errorf("client %s could not write record %d", from, n)
			}
		}
		time.Sleep(time.Millisecond) // it is a client, and not a benchmark
		return nil
	})
	return c
}

func (c *recordClient) try(record []byte) (err error) {
	const patience = 150 * time.Millisecond // with a connection attempt, and with an acknowledgement
	if c.conn == nil {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.from)}, Timeout: patience}
		var conn net.Conn
		if err := c.in.do(func() (err error) { conn, err = d.Dial("tcp", c.to); return err }); err != nil {
			return err
		}
		c.conn = conn
	}
	_ = c.conn.SetDeadline(time.Now().Add(patience))
	if _, err = c.conn.Write(record); err == nil {
		_, err = io.ReadFull(c.conn, make([]byte, len(record)))
	}
	if err != nil {
		c.disconnect()
	}
	return err
}

func (c *recordClient) disconnect() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

func (c *recordClient) stop() error {
	defer c.disconnect()
	return c.worker.stop()
}
