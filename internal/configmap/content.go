package configmap

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
)

const (
	// maxCompressed is below the 1 MiB that the API server allows for all data
	// of a ConfigMap.
	maxCompressed = 1_000_000
	// reserve is what Spare keeps of that for changes of records: a grant of each
	// volume, with 63 bytes after compression where the volume has 98, and fences.
	reserve = 420_000
	// maxContent bounds the memory for content that anyone can have written.
	maxContent = 16 << 20
	format     = 1
)

// content is the document in the ConfigMap. Its generation is random, as a
// count can repeat after the ConfigMap was deleted or restored.
type content struct {
	Format     int                        `json:"format"`
	Generation uint64                     `json:"generation"` // not 0
	Entries    map[string]json.RawMessage `json:"entries"`
}

func newGeneration() uint64 { return rand.Uint64N(1<<63) + 1 }

// encode returns an error of kind Exhausted if the content is too large.
func encode(c content) ([]byte, error) {
	var plain bytes.Buffer
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false) // it would change the entries
	if err := e.Encode(c); err != nil {
		return nil, err
	}
	if plain.Len() > maxContent {
		return nil, errs.Errorf(errs.Exhausted, "the state would have %d bytes, at most %d are supported; delete volumes that are not needed", plain.Len(), maxContent)
	}
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	if _, err := plain.WriteTo(z); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if compressed.Len() > maxCompressed {
		return nil, errs.Errorf(errs.Exhausted, "the state would have %d bytes after compression, at most %d fit; delete volumes that are not needed", compressed.Len(), maxCompressed)
	}
	return compressed.Bytes(), nil
}

// decode returns store.ErrDamaged, or store.ErrVersion for a later format.
func decode(compressed []byte) (content, error) {
	z, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return content{}, fmt.Errorf("%w: %w", store.ErrDamaged, err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, maxContent+1))
	if err != nil {
		return content{}, fmt.Errorf("%w: %w", store.ErrDamaged, err)
	}
	if len(plain) > maxContent {
		return content{}, fmt.Errorf("%w: it has more than %d bytes after decompression", store.ErrDamaged, maxContent)
	}
	var c content
	switch err := json.Unmarshal(plain, &c); {
	case err != nil:
		return content{}, fmt.Errorf("%w: %w", store.ErrDamaged, err)
	case c.Format > format:
		return content{}, fmt.Errorf("%w: it has format %d, this program reads %d: a newer cleat has written it", store.ErrVersion, c.Format, format)
	case c.Format < format:
		return content{}, fmt.Errorf("%w: it has format %d, expected %d", store.ErrDamaged, c.Format, format)
	case c.Generation == 0:
		return content{}, fmt.Errorf("%w: its generation is 0", store.ErrDamaged)
	}
	return c, nil
}
