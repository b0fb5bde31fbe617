package storage

import (
	"encoding/binary"
	"os"
)

const (
	blockSize = 512
	// blocksEach is how many blocks a writer has on a disk; it writes them in
	// turn.
	blocksEach = 64
	// DiskSize has space for sixteen writers.
	DiskSize = 16 * blocksEach * blockSize
)

// block returns the block and position (in blocks) of a write.
func block(id, number uint64) (at uint64, data []byte) {
	data = make([]byte, blockSize)
	for i := 0; i < blockSize; i += 16 {
		binary.BigEndian.PutUint64(data[i:], id)
		binary.BigEndian.PutUint64(data[i+8:], number)
	}
	return id*blocksEach + number%blocksEach, data
}

// Newest returns the highest number of a writer on a disk, and the bytes of all
// its blocks.
func Newest(disk string, id uint64) (number uint64, region []byte, err error) {
	file, err := os.Open(disk)
	if err != nil {
		return 0, nil, err
	}
	defer file.Close()
	region = make([]byte, blocksEach*blockSize)
	if _, err := file.ReadAt(region, int64(id)*blocksEach*blockSize); err != nil {
		return 0, nil, err
	}
	for i := 0; i < len(region); i += 16 {
		if binary.BigEndian.Uint64(region[i:]) == id {
			number = max(number, binary.BigEndian.Uint64(region[i+8:]))
		}
	}
	return number, region, nil
}

// makeDisk creates a disk of zeros.
func makeDisk(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Truncate(DiskSize)
}
