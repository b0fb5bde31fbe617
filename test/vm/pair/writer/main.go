// Command writer writes numbered blocks to a disk, flushes each and prints its
// number. With -check it verifies the blocks. Blocks of different seeds differ.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockSize is the size of every request in bytes.
const blockSize = 4096

func main() {
	var j job
	flag.IntVar(&j.check, "check", 0, "verify that many blocks instead of writing")
	flag.IntVar(&j.count, "count", 0, "write that many blocks; 0: until an error")
	flag.Uint64Var(&j.seed, "seed", 1, "seed of the blocks")
	flag.Parse()
	if err := j.run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
}

type job struct {
	check, count int
	seed         uint64
}

func (j job) run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: writer [-check N] DISK")
	}
	// O_DIRECT bypasses the guest's page cache, so reads come from the disk.
	disk, err := os.OpenFile(args[0], os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer disk.Close()
	if j.check > 0 {
		return j.look(disk)
	}
	return j.write(disk)
}

// write writes until an error, at the latest at the end of the disk. It prints
// a block's number once its flush was acknowledged.
func (j job) write(disk *os.File) error {
	buffer := aligned()
	for i := 0; j.count == 0 || i < j.count; i++ {
		copy(buffer, j.block(i))
		if _, err := disk.WriteAt(buffer, int64(i)*blockSize); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
		if err := unix.Fdatasync(int(disk.Fd())); err != nil {
			return fmt.Errorf("flush block %d: %w", i, err)
		}
		fmt.Println(i)
	}
	return nil
}

func (j job) look(disk *os.File) error {
	buffer := aligned()
	for i := range j.check {
		if _, err := disk.ReadAt(buffer, int64(i)*blockSize); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
		if !bytes.Equal(buffer, j.block(i)) {
			return fmt.Errorf("block %d has unexpected contents, starting with % x", i, buffer[:16])
		}
	}
	fmt.Println(j.check, "blocks verified")
	return nil
}

// block returns the content of block i: its number and pseudorandom bytes.
func (j job) block(i int) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, blockSize), uint64(i))
	for r := rand.New(rand.NewPCG(uint64(i), j.seed)); len(b) < blockSize; {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b
}

// aligned returns a buffer aligned for O_DIRECT.
func aligned() []byte {
	b := make([]byte, 2*blockSize)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (blockSize - 1)
	return b[skip : skip+blockSize]
}
