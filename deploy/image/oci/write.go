package oci

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// nameAnnotation is containerd's annotation for the full reference
// (images.AnnotationImageName in its source).
const nameAnnotation = "io.containerd.image.name"

// Write writes the images as one tar in OCI layout. Shared blobs are written
// once. Every layer is generated twice, since its digest comes before its
// content.
func Write(w io.Writer, images ...Image) error {
	if err := distinct(images); err != nil {
		return err
	}
	s := &store{known: map[digest.Digest]bool{}}
	var all []manifest
	for _, i := range images {
		m, err := s.image(i)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.Reference, err)
		}
		all = append(all, m)
	}
	return s.write(w, all)
}

// store collects the blobs of the tar in order of appearance.
type store struct {
	blobs []blob
	known map[digest.Digest]bool
}

type blob struct {
	v1.Descriptor
	write func(io.Writer) error
}

func (s *store) image(i Image) (manifest, error) {
	if err := i.validate(); err != nil {
		return manifest{}, err
	}
	var layers []v1.Descriptor
	for n, l := range i.Layers {
		d, err := s.add(v1.MediaTypeImageLayer, l.write)
		if err != nil {
			return manifest{}, fmt.Errorf("layer %d: %w", n+1, err)
		}
		layers = append(layers, d)
	}
	config, err := s.document(v1.MediaTypeImageConfig, i.config(layers))
	if err != nil {
		return manifest{}, err
	}
	d, err := s.document(v1.MediaTypeImageManifest, v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: config, Layers: layers,
	})
	if err != nil {
		return manifest{}, err
	}
	d.Platform = &v1.Platform{Architecture: i.architecture(), OS: "linux"}
	d.Annotations = map[string]string{nameAnnotation: i.Reference, v1.AnnotationRefName: i.Reference[strings.LastIndex(i.Reference, ":")+1:]}
	return manifest{reference: i.Reference, config: config, manifest: d, layers: layers}, nil
}

func (s *store) document(mediaType string, content any) (v1.Descriptor, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return s.add(mediaType, bytesWriter(data))
}

func bytesWriter(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// add computes the size and digest of a blob and stores it.
func (s *store) add(mediaType string, write func(io.Writer) error) (v1.Descriptor, error) {
	m := &meter{w: io.Discard, sum: sha256.New()}
	if err := write(m); err != nil {
		return v1.Descriptor{}, err
	}
	d := v1.Descriptor{MediaType: mediaType, Digest: m.digest(), Size: m.size}
	if !s.known[d.Digest] {
		s.known[d.Digest] = true
		s.blobs = append(s.blobs, blob{d, write})
	}
	return d, nil
}

func (s *store) write(w io.Writer, all []manifest) error {
	t := tar.NewWriter(w)
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, m := range all {
		index.Manifests = append(index.Manifests, m.manifest)
	}
	for _, d := range []struct {
		name    string
		content any
	}{
		{v1.ImageLayoutFile, v1.ImageLayout{Version: v1.ImageLayoutVersion}}, {v1.ImageIndexFile, index}, {"manifest.json", dockerManifest(all)},
	} {
		data, err := json.Marshal(d.content)
		if err != nil {
			return err
		}
		if err := entry(t, d.name, int64(len(data)), bytesWriter(data)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"blobs/", blobsDir} {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
	}
	for _, b := range s.blobs {
		m := &meter{sum: sha256.New()}
		err := entry(t, blobsDir+b.Digest.Encoded(), b.Size, func(w io.Writer) error {
			m.w = w
			return b.write(m)
		})
		if err == nil && m.digest() != b.Digest {
			err = fmt.Errorf("its content changed while it was read, from %s to %s", b.Digest, m.digest())
		}
		if err != nil {
			return fmt.Errorf("write blob %s: %w", b.Digest, err)
		}
	}
	return t.Close()
}

const blobsDir = v1.ImageBlobsDir + "/sha256/"

func entry(t *tar.Writer, name string, size int64, write func(io.Writer) error) error {
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	return write(t)
}

// dockerEntry is an element of manifest.json in docker save's format.
type dockerEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func dockerManifest(all []manifest) []dockerEntry {
	var entries []dockerEntry
	for _, m := range all {
		e := dockerEntry{Config: blobsDir + m.config.Digest.Encoded(), RepoTags: []string{m.reference}}
		for _, l := range m.layers {
			e.Layers = append(e.Layers, blobsDir+l.Digest.Encoded())
		}
		entries = append(entries, e)
	}
	return entries
}

// meter computes the size and digest of the bytes written.
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
