// Worker changes and reads the store at the path of its argument, one operation
// per line of its input, and prints one line for each: "ok" with the keys, or
// the error. From hold to release a View runs, which reads the records twice.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/store"
)

const (
	// kept is the number of records after many puts.
	kept = 20
	// length of a value, in keys.
	length    = 1250
	heldBound = 200 * time.Millisecond
)

var records = store.Bucket[string]{Name: "records"}

func main() {
	ctx := context.Background()
	s, err := store.Open(ctx, os.Args[1], store.Options{Role: "test", Version: 1, Preallocate: 1 << 20})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ok")
	var release func() error
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch line := lines.Text(); line {
		case "hold":
			release = hold(ctx, s)
			answer("", nil)
		case "release":
			answer("", release())
			release = nil
		case "list":
			var keys []string
			err := s.View(ctx, func(tx *store.Tx) (err error) { keys, err = list(tx); return err })
			answer(strings.Join(keys, " "), err)
		default:
			n, err := strconv.Atoi(line)
			if err == nil {
				err = put(ctx, s, n, release != nil)
			}
			answer("", err)
		}
	}
}

// list also compares the values, which have the number of their record.
func list(tx *store.Tx) (keys []string, err error) {
	for e, err := range records.Range(tx, "") {
		if err == nil && e.Value != strings.Repeat(e.Key, length) {
			err = fmt.Errorf("record %s has the value %.4q", e.Key, e.Value)
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, e.Key)
	}
	return keys, nil
}

// hold returns when the View has read the records once.
func hold(ctx context.Context, s *store.Store) (release func() error) {
	begun, leave, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.View(ctx, func(tx *store.Tx) error {
			before, err := list(tx)
			close(begun)
			<-leave
			if err != nil {
				return err
			}
			after, err := list(tx)
			if err == nil && !slices.Equal(before, after) {
				err = fmt.Errorf("has %v", after)
			}
			if err != nil {
				err = fmt.Errorf("a View of %v changed: %w", before, err)
			}
			return err
		})
	}()
	<-begun
	return func() error { close(leave); return <-ended }
}

// put adds record n and deletes an old one. It also rewrites pages that earlier
// transactions need. It can wait for a View that is held, so then it has a
// deadline.
func put(ctx context.Context, s *store.Store, n int, held bool) error {
	if held {
		bound, cancel := context.WithTimeout(ctx, heldBound)
		defer cancel()
		ctx = bound
	}
	return s.Update(ctx, func(tx *store.Tx) error {
		if err := records.Delete(tx, fmt.Sprintf("%04d", n-kept)); err != nil {
			return err
		}
		key := fmt.Sprintf("%04d", n)
		return records.Put(tx, key, strings.Repeat(key, length))
	})
}

func answer(text string, err error) {
	if err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	fmt.Println(strings.TrimSpace("ok " + text))
}
