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

// recordServer stores numbered records that clients send over TCP, and
// acknowledges each.
type recordServer struct {
	listener net.Listener
	mu       sync.Mutex
	records  map[string][]uint64 // by client address, in order of arrival
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

// recordsOf returns the records of a client.
func (s *recordServer) recordsOf(from string) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[from]
}

// checkComplete fails unless records are 1 to last, in order. Repeated records
// are allowed: a client sends a record again if it got no acknowledgement.
func checkComplete(records []uint64, last int64) error {
	sent := slices.Compact(slices.Clone(records))
	for i, n := range sent {
		if n != uint64(i+1) {
			return fmt.Errorf("record %d arrived as number %d", n, i+1)
		}
	}
	if int64(len(sent)) != last {
		return fmt.Errorf("%d records were acknowledged, but %d are stored", last, len(sent))
	}
	return nil
}

// recordClient writes records one by one and repeats each until it is
// acknowledged.
type recordClient struct {
	*worker
	from, to string
	in       netns
	attempts atomic.Int64 // failed ones
	conn     net.Conn
}

// startRecordClient starts a client with this address in a network namespace.
func startRecordClient(in netns, from, to string) *recordClient {
	c := &recordClient{from: from, to: to, in: in}
	c.worker = startWorker(func(n int64) error {
		for record := binary.BigEndian.AppendUint64(nil, uint64(n)); c.try(record) != nil; c.attempts.Add(1) {
			if c.stopping.Load() {
				return fmt.Errorf("client %s could not write record %d", from, n)
			}
		}
		time.Sleep(time.Millisecond) // limits the load
		return nil
	})
	return c
}

func (c *recordClient) try(record []byte) (err error) {
	const timeout = 150 * time.Millisecond // of a connection attempt and of an acknowledgement
	if c.conn == nil {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.from)}, Timeout: timeout}
		var conn net.Conn
		if err := c.in.do(func() (err error) { conn, err = d.Dial("tcp", c.to); return err }); err != nil {
			return err
		}
		c.conn = conn
	}
	_ = c.conn.SetDeadline(time.Now().Add(timeout))
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
