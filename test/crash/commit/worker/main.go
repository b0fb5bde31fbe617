// Worker changes and reads the store at the path of its argument, one operation
// per line of its input, and prints one line for each: "ok" with the keys, or
// the error.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/store"
)

// Kept is the number of records after many puts.
const kept = 20

var records = store.Bucket[string]{Name: "records"}

func main() {
	ctx := context.Background()
	s, err := store.Open(ctx, os.Args[1], store.Options{Role: "test", Version: 1, Preallocate: 1 << 20})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ok")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var keys []string
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			answer("", put(ctx, s, n))
			continue
		}
		err := s.View(ctx, func(tx *store.Tx) error {
			for e, err := range records.Range(tx, "") {
				if err != nil {
					return err
				}
				keys = append(keys, e.Key)
			}
			return nil
		})
		answer(strings.Join(keys, " "), err)
	}
}

// put adds record n and deletes an old one. It also rewrites pages that earlier
// transactions need.
func put(ctx context.Context, s *store.Store, n int) error {
	return s.Update(ctx, func(tx *store.Tx) error {
		if err := records.Delete(tx, fmt.Sprintf("%04d", n-kept)); err != nil {
			return err
		}
		return records.Put(tx, fmt.Sprintf("%04d", n), strings.Repeat("x", 5000))
	})
}

func answer(text string, err error) {
	if err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	fmt.Println(strings.TrimSpace("ok " + text))
}
