package store

// reserve is the written space at the end of the file.
type reserve struct {
	step int64 // 0: disabled
	end  int64 // of the file
}

// follow extends the file near its end. A full file system is not fatal: the
// next commit retries. The caller holds the write token.
func (s *Store) follow(used int64) error {
	r := &s.reserve
	if r.step == 0 || used < r.end-r.step/4 {
		return nil
	}
	from := max(r.end, used)
	err := extend(s.file, nil, from, from+r.step)
	switch {
	case err == nil:
		r.end = from + r.step
	case !isFull(err):
		s.durable.Store(unknown) // confirm examines the file
	}
	return err
}
