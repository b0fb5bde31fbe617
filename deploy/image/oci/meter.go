package oci

import (
	"hash"
	"io"

	"github.com/opencontainers/go-digest"
)

// meter measures what passes through it.
type meter struct {
	w    io.Writer
	sum  hash.Hash // SHA-256
	size int64
}

func (m *meter) Write(p []byte) (int, error) {
	n, err := m.w.Write(p)
	m.sum.Write(p[:n])
	m.size += int64(n)
	return n, err
}

func (m *meter) digest() digest.Digest { return digest.NewDigest(digest.SHA256, m.sum) }
