package keyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"weir/internal/config"
)

// Update changes the lines of a keys file, and puts the result in its place at once, if it is a
// keys file again. A file that does not exist is an empty one. Two updates at the same time
// happen one after the other, also if two processes make them.
func Update(path string, admin bool, change func(lines []string, file *File, root *config.Section) ([]string, error)) error {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		path = at // a link stays one
	}
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unlock()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	changed, err := edited(data, admin, change)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if bytes.Equal(changed, data) {
		return nil
	}
	if _, err := ParseFile(changed, admin); err != nil {
		return fmt.Errorf("%s stays as it is: %w", path, err)
	}
	return Replace(path, changed)
}

// edited returns the text of a file with its lines changed.
func edited(data []byte, admin bool, change func(lines []string, file *File, root *config.Section) ([]string, error)) ([]byte, error) {
	file, err := ParseFile(data, admin)
	if err != nil {
		return nil, err
	}
	root, err := config.ParseSections(data)
	if err != nil {
		return nil, err
	}
	lines, err := change(linesOf(data), file, root)
	if err != nil {
		return nil, err
	}
	return textOfLines(lines), nil
}

func linesOf(data []byte) []string {
	text := strings.TrimSuffix(string(data), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func textOfLines(lines []string) []byte { return []byte(strings.Join(lines, "\n") + "\n") }

// lock keeps other processes that lock the same folder waiting. It leaves no file behind.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // which unlocks
}

// Replace puts a file in the place of another at once: who reads it sees the one or the other,
// whole. It has the mode of the other one, and its owner if this process may give it away. A new
// file may be read by its owner only.
func Replace(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if had, err := os.Stat(path); err == nil {
		if owner, ok := had.Sys().(*syscall.Stat_t); ok {
			_ = f.Chown(int(owner.Uid), int(owner.Gid)) // only root may
		}
		if err := f.Chmod(had.Mode().Perm()); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
