/*-------------------------------------------------------------------------
 *
 * replay.c
 *	  Runs files through a fuzz target, without the libFuzzer that found them.
 *
 *-------------------------------------------------------------------------
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
	{
		FILE	   *file = fopen(argv[i], "rb");
		uint8_t    *data;
		long		size;

		if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0)
		{
			perror(argv[i]);
			return 1;
		}
		rewind(file);
		data = malloc(size > 0 ? size : 1);
		if (data == NULL || fread(data, 1, size, file) != (size_t) size)
		{
			perror(argv[i]);
			return 1;
		}
		fclose(file);
		LLVMFuzzerTestOneInput(data, size);
		free(data);
	}
	printf("%d inputs\n", argc - 1);
	return 0;
}
